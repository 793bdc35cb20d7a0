"""Where tables and progress go."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorwire import progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tensorwire.bench.runner import Progress

PLAIN_WIDTH = 180
"""Characters of a line that goes into a file or a pipe."""


def console() -> Console:
    """Where tables go: as wide as the terminal or ``COLUMNS`` says, or wide enough for a file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH)


Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """cell: the text for a row. text: aligned to the left, as numbers are not. leaves: where there
    is no room, columns with the largest go first; those with 0 stay."""

    name: str
    cell: Callable[[Row], str]
    text: bool = False
    leaves: int = 0


def print_table(
    console: Console,
    title: str,
    columns: Sequence[Column],
    groups: Iterable[tuple[str, Sequence[Row]]],
    bold: Callable[[Row], bool],
) -> list[Column]:
    """A table of groups of rows, no wider than the console. Columns for which there is no room are
    left out, said so below, and returned."""
    from rich.measure import Measurement

    groups = list(groups)
    shown, left_out = list(columns), []
    unbounded = console.options.update(max_width=100 * PLAIN_WIDTH)
    while True:
        table = _table(shown, groups, bold)
        wide = Measurement.get(console, unbounded, table).maximum > console.width
        may_go = [column for column in shown if column.leaves]
        if not (wide and may_go):
            break
        left_out.append(max(may_go, key=lambda column: column.leaves))
        shown.remove(left_out[-1])
    console.print(title, style="bold", highlight=False)
    if console.is_terminal:
        console.print(table)
    else:
        with console.capture() as captured:
            console.print(table)
        for line in captured.get().splitlines():
            console.print(line.rstrip(), markup=False, highlight=False)
    if left_out:
        names = ", ".join(column.name for column in columns if column in left_out)
        console.print(
            f"Without {names}: a wider terminal shows them, --json has them all.", highlight=False
        )
    return left_out


def _table(
    columns: Sequence[Column],
    groups: Iterable[tuple[str, Sequence[Row]]],
    bold: Callable[[Row], bool],
) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("case", no_wrap=True)
    for column in columns:
        table.add_column(column.name, justify="left" if column.text else "right", no_wrap=True)
    for place, (group, rows) in enumerate(groups):
        if place:
            table.add_section()
        for number, row in enumerate(rows):
            cells = [column.cell(row) for column in columns]
            style = "bold" if bold(row) else None
            table.add_row("" if number else group, *cells, style=style)
    return table


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on standard error, so that standard output holds the result only; where that is no
    terminal, a line each ten seconds."""
    if not sys.stderr.isatty():
        with _plain() as plain:
            yield plain
        return
    from rich import progress as rich_progress
    from rich.console import Console

    bar = rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("starting", total=None)

        def update(now: str, done: int, total: int) -> None:
            bar.update(task, description=now, completed=done, total=total or None)

        yield update


@contextmanager
def _plain() -> Iterator[Progress]:
    state = "starting"

    def update(now: str, done: int, total: int) -> None:
        nonlocal state
        state = f"{now}: {done} of {total}" if total else now

    with progress.lines(lambda: state):
        yield update
