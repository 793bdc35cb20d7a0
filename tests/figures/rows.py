# SPDX-License-Identifier: Apache-2.0
"""Rows of a set, and how tables show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tests.figures.sets import Report

Row = dict[str, Any]
Line = Sequence[str]

MB: Final = 1 << 20
WAYS: Final = ("shm", "tcp")


class Rows:
    """Of all reports of a set."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._rows: list[Row] = [row for report in reports for row in report["rows"]]

    def one(self, **wanted: Any) -> Row | None:
        """The row that is of all of that; None where nothing was measured so. Of several (a peer
        on two transports) the fastest."""
        found = [row for row in self._rows if all(row[k] == v for k, v in wanted.items())]
        speed = "p50_us" if found and "p50_us" in found[0] else "p50_ms"
        return min(found, key=lambda row: float(row[speed]), default=None)


def times(ratio: float | None, *, bold: bool = False) -> str:
    """How many times as fast."""
    if ratio is None:
        return ""
    text = f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"
    return f"**{text}**" if bold else text


def part(ratio: float) -> str:
    """Of the CPU: 1/25, or 1/5.9."""
    return f"1/{ratio:.0f}" if ratio >= 9.95 else f"1/{ratio:.1f}"


def with_ratio(time: str, ratio: float | None, *, bold: bool = False) -> str:
    return f"{time} ({times(ratio, bold=bold)})" if ratio is not None else time


def table(head: Line, lines: Sequence[Line]) -> str:
    """Lines of which nothing was measured are left out."""
    first, *others = (
        f"| {' | '.join(line)} |".replace("|  ", "| ")
        for line in (head, *(line for line in lines if any(line[1:])))
    )
    return "\n".join([first, "|---" * len(head) + "|", *others])
