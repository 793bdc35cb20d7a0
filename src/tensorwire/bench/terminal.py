"""Where tables and progress go."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tensorwire import progress

if TYPE_CHECKING:
    from rich.console import Console

    from tensorwire.bench.runner import Progress

PLAIN_WIDTH = 180
"""Columns of a table that goes into a file or a pipe."""


def console() -> Console:
    """Where tables go: as wide as the terminal, or wide enough for a file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)


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
