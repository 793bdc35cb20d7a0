# SPDX-License-Identifier: Apache-2.0
"""Rows of a set, and how tables show them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, Final

from tensorwire.bench.harness.rows import Report, Row

Line = Sequence[str]

MB: Final = 1 << 20
WAYS: Final = ("shm", "tcp")
COLUMNS: Final = 100
STEADY: Final = 0.5
"""How far rounds may be apart, as a part of their median."""
ABOUT: Final = "about"


class Rows:
    """Of all reports of a set."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self.all: list[Row] = [row for report in reports for row in report.rows]

    def one(self, **wanted: Any) -> Row | None:
        """The row that is of all of that; None where nothing was measured so. Of several (a peer
        on two transports) the fastest."""
        found = [r for r in self.all if all(getattr(r, k) == v for k, v in wanted.items())]
        return min(found, key=lambda row: measured(row.p50_us), default=None)


def measured(figure: float | None) -> float:
    """A figure that the suite measures in every row."""
    assert figure is not None
    return figure


def times(ratio: float | None, *, bold: bool = False) -> str:
    """How many times as fast."""
    if ratio is None:
        return ""
    text = f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"
    return f"**{text}**" if bold else text


def about(ratio: str, *rows: Row | None) -> str:
    """A ratio of these; ``about``, where rounds of one of them were too far apart for more than
    that."""
    unsteady = any((row.p50_spread or 0.0) > STEADY for row in rows if row is not None)
    return f"{ABOUT} {ratio}" if ratio and unsteady else ratio


def faster(ours: Row, other: Row, *, bold: bool = False) -> str:
    """How many times faster ours is by the time of a call."""
    return about(times(measured(other.p50_us) / measured(ours.p50_us), bold=bold), ours, other)


def part(ratio: float) -> str:
    """Of the CPU: 1/25, or 1/5.9."""
    return f"1/{ratio:.0f}" if ratio >= 9.95 else f"1/{ratio:.1f}"


def with_ratio(time: str, ratio: float | None, *rows: Row | None, bold: bool = False) -> str:
    """rows: of which the ratio is."""
    return f"{time} ({about(times(ratio, bold=bold), *rows)})" if ratio is not None else time


def table(head: Line, lines: Sequence[Line]) -> str:
    """Lines of which nothing was measured are left out."""
    first, *others = (
        f"| {' | '.join(line)} |".replace("|  ", "| ")
        for line in (head, *(line for line in lines if any(line[1:])))
    )
    return "\n".join([first, "|---" * len(head) + "|", *others])


def wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
