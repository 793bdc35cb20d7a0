# SPDX-License-Identifier: Apache-2.0
"""What a command that measures does with its figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorwire.bench.files import save
from tensorwire.terminal import console

if TYPE_CHECKING:
    from rich.console import Console


def hand_over(
    report: dict[str, Any],
    output: Path | None,
    json_: bool,
    print_table: Callable[[dict[str, Any], Console], None],
    draw: Callable[[], bool] = lambda: True,
) -> bool:
    """Writes, prints and draws the figures of a run, also of one that Ctrl-C has ended; after those
    the command ends as Ctrl-C ends it. Whether all files could be written; one that could not keeps
    nothing else from being done."""
    saved = save(output, lambda path: path.write_text(json.dumps(report, indent=2) + "\n"))
    if json_:
        print(json.dumps(report, indent=2))
    else:
        print_table(report, console())
    saved &= draw()
    if report["environment"]["interrupted"]:
        raise KeyboardInterrupt
    return saved
