# SPDX-License-Identifier: Apache-2.0
"""The page in a browser: it draws, answers to a pointer, follows the reader's light and dark, fits
a phone and paper, and asks nobody for anything.

`make browser` installs what it needs: Chromium on the `PATH`, or where `CHROMIUM` says, and
playwright. Without them it is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.bench.report import made

from tensorwire.bench.report import page as made_page
from tensorwire.bench.report.runs import parse

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

PICTURES = 9
SCRIPTS = (
    "<script>document.documentElement.dataset.ran = 'yes'</script>"
    "<img src='https://example.com/x.png' onerror=\"document.documentElement.dataset.ran = 'yes'\">"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # Its sandbox needs rights that a container may lack; the page is ours.
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    rows = [
        *made.sweep("grpcio", 3),
        *made.sweep("tensorwire"),
        *made.sweep("zmq", 0.5),
        *made.sweep(SCRIPTS, 4),
        *made.sweep("tensorwire", 1, (1000,), case=SCRIPTS),
    ]
    told = {"notes": [SCRIPTS]}
    found = parse(made.written(rows, environment=told, singles=200), SCRIPTS)
    path.write_text(made_page.page(found), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Any]:
    """With what it said and what it asked for, which must be nothing but itself."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    opened = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(file.as_uri())
    opened.wait_for_selector("#picture-0 .main-svg")
    yield opened
    assert said == []
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [file.as_uri()]
    assert opened.evaluate("document.documentElement.dataset.ran") is None
    context.close()


def ink(page: Any) -> str:
    selector = "#picture-0 .xtick text"
    return str(page.eval_on_selector(selector, "each => getComputedStyle(each).fill"))


def test_pictures_are_drawn_when_they_come_near(page: Any) -> None:
    pictures = page.locator("[role=img]").count()
    assert pictures >= PICTURES
    drawn = int(page.evaluate("document.documentElement.dataset.drawn"))
    assert 0 < drawn < pictures
    for place in range(pictures):
        page.locator(f"#picture-{place}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#picture-{place} .main-svg")
    assert page.evaluate("document.documentElement.dataset.drawn") == str(pictures)


def test_a_pointer_over_a_mark_shows_its_figure(page: Any) -> None:
    page.locator("#picture-0").scroll_into_view_if_needed()
    mark = page.locator("#picture-0 .scatterlayer .trace").nth(1).locator(".points path").nth(2)
    box = mark.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    label = page.wait_for_selector("#picture-0 .hoverlayer .hovertext")
    assert label.text_content() == "tensorwire tcp1 MiB: 100 us"


def test_a_pointer_over_a_distribution_shows_the_percentile(page: Any) -> None:
    picture = page.get_by_role("img", name=re.compile(r"^Distribution: request, 8 B,"))
    picture.scroll_into_view_if_needed()
    mark = picture.locator(".scatterlayer .trace").nth(1).locator(".points path").last
    mark.wait_for()
    box = mark.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    label = picture.locator(".hoverlayer .hovertext")
    label.wait_for()
    assert re.fullmatch(r"tensorwire tcp99\.\d+ %: 20\.\d us", label.text_content())
    for figure in ("p50", "p99", "least", "most"):
        assert page.get_by_role("columnheader", name=figure, exact=True).last.is_visible()


def test_names_of_a_stranger_are_text(page: Any) -> None:
    names = page.locator("#picture-0 .legendtext").all_text_contents()
    assert f"{SCRIPTS[:59]}\N{HORIZONTAL ELLIPSIS}" in names
    assert SCRIPTS in page.locator("li").all_text_contents()


def test_it_is_light_or_dark_as_the_reader_likes(page: Any) -> None:
    light = ink(page)
    page.emulate_media(color_scheme="dark")
    dark = ink(page)
    assert light == "rgb(27, 29, 33)"
    assert dark == "rgb(232, 234, 238)"
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(20, 22, 26)"


def test_it_fits_a_phone(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_selector('#picture-0 .main-svg[width="328"]')
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_on_paper_it_is_light_and_has_all_pictures(page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    pictures = page.locator("[role=img]").count()
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert page.evaluate("document.documentElement.dataset.drawn") == str(pictures)
    page.emulate_media(media="print", color_scheme="dark")
    assert ink(page) == "rgb(27, 29, 33)"


def test_a_reader_of_the_screen_hears_what_pictures_show(page: Any) -> None:
    words = page.get_by_role("img").first.get_attribute("aria-label")
    assert "tensorwire tcp: 10 us at 8 B" in words
