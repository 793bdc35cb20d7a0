# SPDX-License-Identifier: Apache-2.0
"""What a run will come to, and its progress."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, cast

from tensorwire import progress
from tensorwire.terminal import is_terminal

if TYPE_CHECKING:
    from tensorwire.bench.harness.schedule import Forecast, Progress


def announce(command: str, forecast: Forecast) -> None:
    """Says on standard error what a run will come to, before it begins."""
    progress.say(f"{command}: {forecast.visits} visits, {about(forecast.seconds)}")


def about(seconds: float) -> str:
    """A length of time as people say it."""
    if seconds < 10:
        return "a few seconds"
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min")):
        if seconds < limit:
            return f"about {seconds / unit:.0f} {name}"
    return f"about {seconds / 3600:.1f} h"


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on standard error, so that standard output holds the result only; where that is no
    terminal, a line each ten seconds. That the terminal is closed ends nothing."""
    if not is_terminal(sys.stderr):
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
        console=Console(file=cast(IO[str], _Closable(sys.stderr))),
        transient=True,
    )
    with bar:
        task = bar.add_task("starting", total=None)

        def update(now: str, done: int, total: int) -> None:
            bar.update(task, description=now, completed=done, total=total or None)

        yield update


class _Closable:
    """A terminal that may be closed: what is written to it then is lost. The bar is drawn on a
    thread of its own, too, and has to be stopped to the end."""

    def __init__(self, terminal: IO[str]) -> None:
        self._terminal = terminal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._terminal.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._terminal.flush()


@contextmanager
def _plain() -> Iterator[Progress]:
    state = "starting"
    first: tuple[float, int] | None = None  # when something was done, and how much then

    def update(now: str, done: int, total: int) -> None:
        nonlocal state, first
        state = f"{now}: {done} of {total}" if total else now
        clock = monotonic()
        if done and first is None:
            first = clock, done
        elif first is not None and first[1] < done < total:
            left = (clock - first[0]) / (done - first[1]) * (total - done)
            state += f", {about(left)} left"

    with progress.lines(lambda: state):
        yield update
