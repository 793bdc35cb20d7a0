# SPDX-License-Identifier: Apache-2.0
"""Tables for people: no wider than the terminal, no number cut, no padding where none is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PLAIN_WIDTH: Final = 180
"""Characters of a line that goes into a file or a pipe."""


def console() -> Console:
    """Where tables go: as wide as the terminal or ``COLUMNS`` says, or wide enough for a file."""
    from rich.console import Console

    fits = "COLUMNS" in os.environ or is_terminal(sys.stdout)
    return Console(width=None if fits else PLAIN_WIDTH)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether one of the standard streams is. There is none where it was closed before this process
    started, as service managers do."""
    return stream is not None and stream.isatty()


@dataclass(frozen=True)
class Column:
    """cell: the text for a row. text: aligned to the left, as numbers are not. leaves: where there
    is no room, columns with the largest go first; those with 0 stay."""

    name: str
    cell: Callable[[Any], str]
    text: bool = False
    leaves: int = 0

    def head(self, table: Table) -> None:
        """Adds this column to a table."""
        table.add_column(self.name, justify="left" if self.text else "right", no_wrap=True)


def fitted(
    console: Console, columns: Sequence[Column], table: Callable[[Sequence[Column]], Table]
) -> tuple[Table, list[Column]]:
    """``table`` of those columns for which the console has room, and those that were left out."""
    from rich.measure import Measurement

    shown, left_out = list(columns), []
    unbounded = console.options.update(max_width=100 * PLAIN_WIDTH)
    while True:
        made = table(shown)
        wide = Measurement.get(console, unbounded, made).maximum > console.width
        may_go = [column for column in shown if column.leaves]
        if not (wide and may_go):
            return made, [column for column in columns if column in left_out]
        left_out.append(max(may_go, key=lambda column: column.leaves))
        shown.remove(left_out[-1])


def show(console: Console, what: Table | str) -> None:
    """Prints a table, or a text as it is, without spaces at the ends of lines where that is no
    terminal."""
    if console.is_terminal:
        console.print(what, markup=False, highlight=False)
        return
    with console.capture() as captured:
        console.print(what, markup=False, highlight=False)
    for line in captured.get().splitlines():
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)


def tell_left_out(console: Console, columns: Sequence[Column], *, json: bool = True) -> None:
    """json: whether the command has that option."""
    if columns:
        names = ", ".join(column.name for column in columns)
        others = ", --json has them all" if json else ""
        show(console, f"Without {names}: a wider terminal shows them{others}.")
