# SPDX-License-Identifier: Apache-2.0
"""A picture of a page of figures, for the documentation; needs what test_browser.py needs.

python -m tests.bench.report.picture docs/benchmarks/rpc.json docs/images/report.png
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tensorwire.bench.report.page import page
from tensorwire.bench.report.runs import read


def main(run: Path, output: Path) -> None:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        file = Path(folder) / "report.html"
        file.write_text(page(read(run)), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1200, "height": 690})
        opened.goto(file.as_uri())
        opened.wait_for_selector("#picture-0 .main-svg")
        opened.evaluate("document.querySelector('.pictures').previousSibling.scrollIntoView()")
        opened.wait_for_selector("#picture-1 .main-svg")
        mark = opened.locator("#picture-0 .scatterlayer .trace").nth(1).locator(".points path")
        box = mark.last.bounding_box()
        assert box is not None
        opened.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        opened.wait_for_selector("#picture-0 .hovertext")
        opened.screenshot(path=output)
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
