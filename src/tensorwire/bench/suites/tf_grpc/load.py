# SPDX-License-Identifier: Apache-2.0
"""Calls of one worker, one after the other or some at a time, and the time that each one takes.

No time is left out (coordinated omission). Without a rate, a call begins where the one before
has ended, so that all calls together are the whole time and a stall is the time of some call. With
a rate, calls have a time at which they should begin, whatever the ones before take, and their times
count from there. In a window, a call begins where the one ahead of it by the window has ended.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tensorwire.bench.harness.measure import check, thinned
from tensorwire.bench.suites.tf_grpc.contender import Begin, Call

MOST_TOLD: Final = 20_000
"""Times of calls that a worker tells of one visit."""
_SPIN_NS: Final = 100_000
"""Sleeping ends about that late; it is spun for instead."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Calls:
    """Of one visit: the nanoseconds that each took, and the seconds from the first one's begin to
    the last one's end."""

    durations: array[int]
    seconds: float


@dataclass(frozen=True)
class Times:
    """What the calls of one visit took, in nanoseconds. told: all of them, or so many, evenly
    spaced. seconds: as of ``Calls``."""

    calls: int
    seconds: float
    total: int
    least: int
    most: int
    told: Sequence[int]

    @classmethod
    def of(cls, calls: Calls) -> Times:
        durations = calls.durations
        return cls(
            len(durations),
            calls.seconds,
            sum(durations),
            min(durations),
            max(durations),
            thinned(durations, MOST_TOLD),
        )

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "told": list(self.told)}


class Turns:
    """The calls of a worker, to one server after the other, whose answers are compared with what
    they should be.

    calls: of each server, one for each payload. answers: to the call of each payload.
    """

    def __init__(self, calls: Sequence[Sequence[Call]], answers: Sequence[int]) -> None:
        self._endless = _turns(calls, answers)

    def __call__(self) -> None:
        """Makes the next call. Raises WrongAnswerError."""
        call, answer = next(self._endless)
        check(call(), answer)

    def until(self, begin: int) -> float:
        """Warms up until that time of ``time.monotonic_ns``, with one call at least. Returns the
        part of the last call that lies behind it."""
        clock = time.monotonic_ns
        before = clock()
        self()
        while (after := clock()) < begin:
            before = after
            self()
        return _behind(begin, before, after)

    def timed(self, begin: int, seconds: float, rate: float) -> Calls:
        """Calls for that long from ``begin`` on, or from now where that is later; one at least.
        rate: calls in a second; 0: one right after the other."""
        start = max(begin, time.monotonic_ns())
        end = start + int(seconds * 1e9)
        return self._at_rate(start, end, rate) if rate else self._back_to_back(end)

    def _back_to_back(self, end: int) -> Calls:
        clock, durations = time.monotonic_ns, array("q")
        keep = durations.append
        start = before = clock()
        while before < end or not durations:
            self()
            after = clock()
            keep(after - before)
            before = after
        return Calls(durations, (before - start) / 1e9)

    def _at_rate(self, start: int, end: int, rate: float) -> Calls:
        clock, durations = time.monotonic_ns, array("q")
        due = now = start
        while due < end or not durations:
            _wait_for(due)
            self()
            now = clock()
            durations.append(now - due)
            due = start + int(len(durations) / rate * 1e9)
        return Calls(durations, (now - start) / 1e9)


class Window:
    """As ``Turns``, with a number of calls under way, as OSU's benchmarks of bandwidth have them.

    begins: of each server, one for each payload.
    """

    def __init__(
        self, begins: Sequence[Sequence[Begin]], answers: Sequence[int], size: int
    ) -> None:
        self._endless = _turns(begins, answers)
        self._size = size
        self._under_way: deque[tuple[int, Call, int]] = deque()

    def _fill(self) -> None:
        while len(self._under_way) < self._size:
            begin, answer = next(self._endless)
            now = time.monotonic_ns()
            self._under_way.append((now, begin(), answer))

    def _end(self) -> int:
        """The nanoseconds of the call that was begun first. Raises WrongAnswerError."""
        begun, end, answer = self._under_way.popleft()
        check(end(), answer)
        return time.monotonic_ns() - begun

    def until(self, begin: int) -> float:
        """Warms up until that time of ``time.monotonic_ns``, with one window at least. Returns how
        many calls lie behind it: those that end there, and of the first of them a part."""
        clock = time.monotonic_ns
        self._fill()
        behind, before = 0.0, clock()
        while self._under_way:
            self._end()
            after = clock()
            behind += _behind(begin, before, after)
            before = after
            if after < begin:
                self._fill()
        return behind

    def timed(self, begin: int, seconds: float, rate: float = 0) -> Calls:
        """Calls for that long from ``begin`` on, or from now where that is later, and until all
        have ended; one window at least. ValueError: a window has no rate."""
        if rate:
            raise ValueError("calls at a rate have no window")
        durations = array("q")
        start = max(begin, time.monotonic_ns())
        end = start + int(seconds * 1e9)
        self._fill()
        while time.monotonic_ns() < end:
            durations.append(self._end())
            self._fill()
        while self._under_way:
            durations.append(self._end())
        return Calls(durations, (time.monotonic_ns() - start) / 1e9)


def _turns(calls: Sequence[Sequence[_T]], answers: Sequence[int]) -> Iterator[tuple[_T, int]]:
    """Each with its answer, of one server after the other, without an end."""
    while True:
        for place, answer in enumerate(answers):
            for server in calls:
                yield server[place], answer


def _behind(begin: int, before: int, after: int) -> float:
    """The part of the time from ``before`` to ``after`` that lies behind ``begin``."""
    return max(after - max(begin, before), 0) / max(after - before, 1)


def _wait_for(due: int) -> None:
    left = due - time.monotonic_ns() - _SPIN_NS
    if left > 0:
        time.sleep(left / 1e9)
    while time.monotonic_ns() < due:
        pass
