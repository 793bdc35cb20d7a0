# SPDX-License-Identifier: Apache-2.0
"""Timing calls inside the client's process: warm-up, one or several callers, quantiles."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from tensorwire.bench import cpu
from tensorwire.bench.peers.base import Client, Stream
from tensorwire.bench.work import Work, answer, payload

WARM_UP_SHARE = 0.2
"""Of the time of one visit."""
MINIMUM_CALLS = 3
STREAM_SECONDS = 0.1
"""A stream is made long enough to last about this long."""
STREAM_MINIMUM = 4
STREAM_BYTES = 256 << 20
"""Of very large messages a stream is not made longer than this for the sake of the minimum."""
STREAM_GROWTH = 16

Clock = Callable[[], float]


@dataclass(frozen=True)
class Visit:
    """One contender's turn in one round. For streams a "call" is one message.

    p50_us, p99_us: of the time of a call (of a stream's time for one message).
    calls, seconds: how many and how long in all; cpu_seconds: of both ends.
    path: the transport that the calls took.
    """

    p50_us: float
    p99_us: float
    calls: int
    seconds: float
    cpu_seconds: float
    path: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class WrongAnswerError(Exception):
    """The receiver did not receive what was sent: the figure would be worth nothing."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed (nearest rank)."""
    rank = -int(-len(ordered) * share // 1)
    return ordered[max(rank, 1) - 1]


def visit(client: Client, work: Work, seconds: float, pids: Sequence[int]) -> Visit:
    """Measures ``work`` for about ``seconds``; ``pids`` are both ends' processes."""
    if work.case == "stream":
        return _visit_stream(client, work, seconds, pids)
    return _visit_calls(client, work, seconds, pids)


def _visit_calls(client: Client, work: Work, seconds: float, pids: Sequence[int]) -> Visit:
    expected = answer(payload(work.size), work.reads)
    with ExitStack() as stack:
        calls = [stack.enter_context(client.call(work)) for _ in range(work.callers)]

        def check() -> None:
            for call in calls:
                _check(call(), expected)

        return visit_calls(calls, check, seconds, pids, client.path)


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


def _visit_stream(client: Client, work: Work, seconds: float, pids: Sequence[int]) -> Visit:
    with client.stream(work) as stream:
        least = max(1, min(STREAM_MINIMUM, STREAM_BYTES // max(work.size, 1)))
        count = _stream_length(stream, least, min(STREAM_SECONDS, seconds))
        durations: list[float] = []
        cpu_before, before = cpu.seconds(pids), time.perf_counter()
        end = before + seconds
        now = before
        while now < end or not durations:
            _check(stream(count), count)
            after = time.perf_counter()
            durations.append(after - now)
            now = after
        cpu_used = cpu.seconds(pids) - cpu_before
        path = client.path()
    durations.sort()
    return Visit(
        quantile(durations, 0.5) / count * 1e6,
        quantile(durations, 0.99) / count * 1e6,
        count * len(durations),
        now - before,
        cpu_used,
        path,
    )


def _stream_length(stream: Stream, least: int, seconds: float) -> int:
    """How many messages last that long; finding it out is the warm-up."""
    count = least
    while True:
        before = time.perf_counter()
        _check(stream(count), count)
        elapsed = time.perf_counter() - before
        if elapsed * 2 >= seconds:
            return max(least, int(count * seconds / elapsed))
        count = int(count * min(STREAM_GROWTH, max(2.0, seconds / max(elapsed, 1e-9))))


def _check(result: int, expected: int) -> None:
    if result != expected:
        raise WrongAnswerError(f"the receiver answered {result}, expected {expected}")
