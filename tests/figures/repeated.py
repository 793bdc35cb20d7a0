# SPDX-License-Identifier: Apache-2.0
"""Two runs of one command, side by side: what a reader may take for a change, and what not."""

from __future__ import annotations

from tests.figures.rows import table
from tests.figures.sets import file_of

from tensorwire.bench.harness.work import format_size
from tensorwire.bench.report.comparison import Comparison, compare
from tensorwire.bench.report.printed import figure_in_words, noise_in_words
from tensorwire.bench.report.runs import parse
from tensorwire.bench.report.speed import figure


def comparison() -> Comparison:
    """Of the second run of the set to the first."""
    path = file_of("repeated")
    first, second = parse(path.read_bytes(), path.name)
    return compare(first, second)


def rows() -> str:
    lines = []
    for change in comparison().changes:
        row, name = change.after.row, figure(change.after) or "p50_us"
        what = f"{row.contender} {row.transport}, {format_size(row.size)}"
        times = [figure_in_words(each, name) for each in (change.before, change.after)]
        noise = noise_in_words(change.ratio)
        lines.append([what, *times, f"{change.ratio.value:.2f}x", noise, change.verdict])
    return table(["request", "first run", "second run", "ratio", "noise", "verdict"], lines)
