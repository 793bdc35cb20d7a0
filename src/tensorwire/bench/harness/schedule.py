# SPDX-License-Identifier: Apache-2.0
"""The course of a run: who takes part, how long it will take, its visits in turn, and what ends it
early."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tensorwire.bench.harness.measure import MINIMUM_CALLS
from tensorwire.signals import TERMINATED

T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Told what is measured now, how many visits are done, and how many there are."""

_CALLS_AT_LEAST: Final = 2 * MINIMUM_CALLS + 2
"""Of a visit: in its warm-up and in its measurement, and a check before and after them."""
_BYTES_PER_SECOND: Final = 1e9
"""About what the baseline moves, and sums up; the others are faster."""


def silent(now: str, done: int, total: int) -> None:
    """The progress of which nobody is told."""


@dataclass(frozen=True)
class Entry:
    """A contender on one of its transports; ``auto`` where the library chooses."""

    contender: str
    transport: str

    def __str__(self) -> str:
        return f"{self.contender} over {self.transport}"


@dataclass
class Course:
    """How a run went."""

    notes: list[str] = field(default_factory=list)
    failed: bool = False
    """Whether a contender that should have run gave no figures, or not the ones asked for."""
    interrupted: bool = False
    """By Ctrl-C, SIGTERM or SIGHUP: the figures are those of the visits before it."""

    def note(self, text: str, *, failed: bool = True) -> None:
        """Something that a reader of the figures has to know."""
        self.notes.append(text)
        self.failed |= failed


@dataclass(frozen=True)
class Forecast:
    """How many visits there are to make, and about how many seconds they and the start take."""

    visits: int = 0
    seconds: float = 0.0

    def __add__(self, other: Forecast) -> Forecast:
        return Forecast(self.visits + other.visits, self.seconds + other.seconds)


def visits(count: int, nbytes: int, seconds: float, overhead: float) -> Forecast:
    """Of visits whose calls last for ``seconds``, those of the warm-up too. nbytes: of a call;
    overhead: seconds of a visit outside of its calls."""
    least = _CALLS_AT_LEAST * nbytes / _BYTES_PER_SECOND
    return Forecast(count, count * (max(seconds, least) + overhead))


def rotated(each: Sequence[T], turn: int) -> list[T]:
    """The order of a round: that of the round before, moved on by one."""
    shift = turn % max(len(each), 1)
    return [*each[shift:], *each[:shift]]


def tour(
    turns: Iterable[T],
    total: int,
    describe: Callable[[T], str],
    visit: Callable[[T], None],
    course: Course,
    progress: Progress,
) -> None:
    """Makes the visits one after the other. Ctrl-C, SIGTERM and SIGHUP end them: what there is
    stays."""
    done = 0
    try:
        for turn in turns:
            progress(describe(turn), done, total)
            visit(turn)
            done += 1
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code not in TERMINATED:
            raise
        course.interrupted = True
        course.note(f"interrupted after {done} of {total} visits")
    else:
        progress("done", total, total)
