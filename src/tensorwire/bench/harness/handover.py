# SPDX-License-Identifier: Apache-2.0
"""A command that measures, from its suite to its exit, and what it does with its figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from tensorwire.bench.harness.files import save
from tensorwire.bench.harness.report import Layout, plot, print_report, write_csv
from tensorwire.bench.harness.rows import Report
from tensorwire.bench.harness.suite import Suite, SuiteError
from tensorwire.bench.harness.terminal import announce, progress_bar
from tensorwire.terminal import console


def measured(
    suite: Suite,
    output: Path | None,
    json_: bool,
    picture: Path | None,
    draw: Callable[[Report, Path], None] = plot,
    csv: Path | None = None,
) -> int:
    """Runs the suite, and hands over its figures; returns the command's exit code."""
    command = f"tensorwire bench {suite.name}"
    announce(command, suite.forecast())
    try:
        with progress_bar() as progress:
            report, complete = suite.run(progress)
    except SuiteError as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    saved = hand_over(report, suite.layout, output, json_, picture, draw, csv)
    return 0 if saved and complete else 1


def hand_over(
    report: Report,
    layout: Layout,
    output: Path | None,
    json_: bool,
    picture: Path | None,
    draw: Callable[[Report, Path], None] = plot,
    csv: Path | None = None,
) -> bool:
    """Writes, prints and draws the figures of a run, also of one that Ctrl-C, SIGTERM or SIGHUP
    has ended; after those the command ends as that ends it. Whether all files could be written; one
    that could not keeps nothing else from being done."""
    text = json.dumps(report.to_json(), indent=2)
    saved = save(output, lambda path: path.write_text(text + "\n"))
    saved &= save(csv, lambda path: write_csv(report, path))
    try:
        if json_:
            print(text)
        else:
            print_report(report, layout, console())
    except OSError:  # nobody may read any more, as where the terminal was closed
        if not report.interrupted:
            raise
    finally:
        saved &= save(picture, lambda path: draw(report, path))
    if report.interrupted:
        raise KeyboardInterrupt
    return saved
