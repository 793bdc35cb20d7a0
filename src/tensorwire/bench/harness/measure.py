# SPDX-License-Identifier: Apache-2.0
"""Timing calls inside the process that makes them: warm-up, one or several callers, quantiles."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from tensorwire.bench.harness import cpu

T = TypeVar("T")

WARM_UP_SHARE = 0.2
"""Of the time of one visit."""
MINIMUM_CALLS = 3
MOST_KEPT: Final = 2_000
"""Times of single calls that a report has of one visit."""
LEAST_FOR_P99: Final = 100
"""Times of which one in a hundred is slower than their p99."""


@dataclass(frozen=True)
class Visit:
    """One contender's turn in one round. A "call" is what is timed: of a stream it is one message.

    p50_us, p99_us: of the time of a call (of a stream's time for one message).
    calls, seconds: how many and how long in all; cpu_seconds: of both ends.
    path: the transport that the calls took; in_place: the share of the bytes that were read in the
    sender's memory (None: that is not counted). min_us, mean_us, max_us: of the time of a call,
    where that is told. ways: those that the library says its calls took. samples_us: times of
    single calls, all or evenly spaced, in their order, those of one caller after another's; empty
    where that is not told. quantiles_of: how many times the quantiles are of, where one time is of
    several calls, and single ones are not told.
    """

    p50_us: float
    p99_us: float
    calls: int
    seconds: float
    cpu_seconds: float
    path: str
    in_place: float | None = None
    min_us: float | None = None
    mean_us: float | None = None
    max_us: float | None = None
    ways: Sequence[str] = ()
    samples_us: Sequence[float] = ()
    quantiles_of: int | None = None

    @property
    def timed(self) -> int:
        """Of how many times the quantiles are, up to those that are kept."""
        return self.quantiles_of or len(self.samples_us) or self.calls

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class WrongAnswerError(Exception):
    """The receiver did not receive what was sent: the figure would be worth nothing."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed (nearest rank)."""
    rank = -int(-len(ordered) * share // 1)
    return ordered[max(rank, 1) - 1]


def thinned(values: Sequence[T], most: int) -> Sequence[T]:
    """All of them, or ``most``, evenly spaced, in their order."""
    if len(values) <= most:
        return values
    return [values[place * len(values) // most] for place in range(most)]


def kept(nanoseconds: Sequence[float], most: int = MOST_KEPT) -> list[float]:
    """Of times in their order those that a report has, in microseconds."""
    return [round(each / 1e3, 3) for each in thinned(nanoseconds, most)]


def visit_calls(
    calls: Sequence[Callable[[], object]],
    check: Callable[[], None],
    seconds: float,
    pids: Sequence[int],
    path: Callable[[], str],
) -> Visit:
    """Measures calls, each by a thread of its own, between two checks; ``path`` is asked at the
    end."""
    check()
    for call in calls:
        timed(call, seconds * WARM_UP_SHARE / len(calls))
    cpu_before, before = cpu.seconds(pids), time.perf_counter()
    nanoseconds = _concurrently(calls, seconds)
    elapsed, cpu_used = time.perf_counter() - before, cpu.seconds(pids) - cpu_before
    check()
    ordered = sorted(nanoseconds)
    return Visit(
        quantile(ordered, 0.5) / 1e3,
        quantile(ordered, 0.99) / 1e3,
        len(ordered),
        elapsed,
        cpu_used,
        path(),
        min_us=ordered[0] / 1e3,
        mean_us=sum(ordered) / len(ordered) / 1e3,
        max_us=ordered[-1] / 1e3,
        samples_us=kept(nanoseconds),
    )


def timed(call: Callable[[], object], seconds: float) -> array[int]:
    """Calls for that long, at least MINIMUM_CALLS times: the nanoseconds that each one took."""
    clock = time.perf_counter_ns
    durations = array("q")
    keep = durations.append
    end = clock() + int(seconds * 1e9)
    before = clock()
    while before < end or len(durations) < MINIMUM_CALLS:
        call()
        after = clock()
        keep(after - before)
        before = after
    return durations


def timed_calls(call: Callable[[], object], count: int) -> tuple[array[int], float]:
    """So many calls, one after the other: the nanoseconds that each one took, and the CPU seconds
    of this process."""
    clock = time.perf_counter_ns
    durations = array("q")
    keep = durations.append
    used, before = time.process_time(), clock()
    for _ in range(count):
        call()
        after = clock()
        keep(after - before)
        before = after
    return durations, time.process_time() - used


def _concurrently(calls: Sequence[Callable[[], object]], seconds: float) -> array[int]:
    if len(calls) == 1:
        return timed(calls[0], seconds)
    results: list[array[int]] = []
    errors: list[BaseException] = []
    start = threading.Barrier(len(calls))

    def caller(call: Callable[[], object]) -> None:
        try:
            start.wait()
            results.append(timed(call, seconds))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caller, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return array("q", [duration for result in results for duration in result])


def check(result: int, expected: int) -> None:
    """Raises WrongAnswerError."""
    if result != expected:
        raise WrongAnswerError(f"the receiver answered {result}, expected {expected}")
