# SPDX-License-Identifier: Apache-2.0
"""One visit of a client: calls, a stream or a first call, and whether what came back is right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from tensorwire.bench.harness import cpu, measure
from tensorwire.bench.harness.work import Work, answer, payload
from tensorwire.bench.suites.rpc.contender import Client, Stream

STREAM_SECONDS = 0.1
"""A stream is made long enough to last about this long."""
STREAM_MINIMUM = 4
STREAM_BYTES = 256 << 20
"""Of very large messages a stream is not made longer than this for the sake of the minimum."""
STREAM_GROWTH = 16


def visit(client: Client, work: Work, seconds: float, pids: Sequence[int]) -> measure.Visit:
    """Measures ``work`` for about ``seconds``; ``pids`` are both ends' processes."""
    if work.case == "stream":
        return _visit_stream(client, work, seconds, pids)
    return _visit_calls(client, work, seconds, pids)


def first(client: Client, work: Work, pids: Sequence[int]) -> measure.Visit:
    """Measures one call, with no other ahead of it."""
    expected = answer(payload(work.size), work.reads)
    with client.call(work) as call:
        cpu_before, before = cpu.seconds(pids), time.perf_counter()
        found = call()
        elapsed, cpu_used = time.perf_counter() - before, cpu.seconds(pids) - cpu_before
        measure.check(found, expected)
    us = elapsed * 1e6
    return measure.Visit(us, us, 1, elapsed, cpu_used, client.path(), samples_us=[round(us, 3)])


def _visit_calls(client: Client, work: Work, seconds: float, pids: Sequence[int]) -> measure.Visit:
    expected = answer(payload(work.size), work.reads)
    with ExitStack() as stack:
        calls = [stack.enter_context(client.call(work)) for _ in range(work.callers)]

        def check() -> None:
            for call in calls:
                measure.check(call(), expected)

        return measure.visit_calls(calls, check, seconds, pids, client.path)


def _visit_stream(client: Client, work: Work, seconds: float, pids: Sequence[int]) -> measure.Visit:
    with client.stream(work) as stream:
        least = max(1, min(STREAM_MINIMUM, STREAM_BYTES // max(work.size, 1)))
        count = _stream_length(stream, least, min(STREAM_SECONDS, seconds))
        durations: list[float] = []
        cpu_before, before = cpu.seconds(pids), time.perf_counter()
        end = before + seconds
        now = before
        while now < end or not durations:
            measure.check(stream(count), count)
            after = time.perf_counter()
            durations.append(after - now)
            now = after
        cpu_used = cpu.seconds(pids) - cpu_before
        path = client.path()
    samples_us = measure.kept([each / count * 1e9 for each in durations])
    durations.sort()
    return measure.Visit(
        measure.quantile(durations, 0.5) / count * 1e6,
        measure.quantile(durations, 0.99) / count * 1e6,
        count * len(durations),
        now - before,
        cpu_used,
        path,
        min_us=durations[0] / count * 1e6,
        mean_us=sum(durations) / len(durations) / count * 1e6,
        max_us=durations[-1] / count * 1e6,
        samples_us=samples_us,
    )


def _stream_length(stream: Stream, least: int, seconds: float) -> int:
    """How many messages last that long; finding it out is the warm-up."""
    count = least
    while True:
        before = time.perf_counter()
        measure.check(stream(count), count)
        elapsed = time.perf_counter() - before
        if elapsed * 2 >= seconds:
            return max(least, int(count * seconds / elapsed))
        count = int(count * min(STREAM_GROWTH, max(2.0, seconds / max(elapsed, 1e-9))))
