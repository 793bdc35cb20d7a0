# SPDX-License-Identifier: Apache-2.0
"""Timing: quantiles, warm-up, several callers, and refusing wrong answers."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.bench.contenders.rpc.memcpy import Memcpy
from tensorwire.bench.harness import cpu, measure
from tensorwire.bench.harness.work import Work, answer, payload
from tensorwire.bench.suites.rpc import visits
from tensorwire.bench.suites.rpc.contender import Call, Client, Stream

PIDS = [os.getpid()]
SECONDS = 0.002


class Fake(Client):
    """Answers what it is told to, and knows who called."""

    def __init__(self, wrong_from: float = math.inf) -> None:
        self.wrong_from = wrong_from
        self.calls = 0
        self.open = 0
        self.threads: set[int] = set()
        self.lengths: list[int] = []

    def path(self) -> str:
        return "fake"

    @contextmanager
    def call(self, work: Work) -> Iterator[Call]:
        right = answer(payload(work.size), work.reads)

        def call() -> int:
            self.calls += 1
            self.threads.add(threading.get_ident())
            return right + (self.calls > self.wrong_from)

        self.open += 1
        yield call
        self.open -= 1

    @contextmanager
    def stream(self, work: Work) -> Iterator[Stream]:
        def send(count: int) -> int:
            self.lengths.append(count)
            for _ in range(count):
                self.calls += 1
            return count - (len(self.lengths) > self.wrong_from)

        yield send


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_a_value_that_its_share_does_not_exceed(
    values: list[float], share: float
) -> None:
    ordered = sorted(values)
    found = measure.quantile(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= len(ordered) * share
    assert sum(value < found for value in ordered) < max(1, math.ceil(len(ordered) * share))


def test_quantiles_of_few_values() -> None:
    assert measure.quantile([7.0], 0.99) == 7.0
    assert measure.quantile([1.0, 2.0], 0.5) == 1.0
    assert measure.quantile(list(map(float, range(1, 101))), 0.99) == 99.0


@pytest.mark.parametrize("case", ["request", "pull"])
def test_a_visit_measures_and_closes(case: str) -> None:
    fake = Fake()
    visit = visits.visit(fake, Work(case, 8), SECONDS, PIDS)
    assert visit.path == "fake"
    assert measure.MINIMUM_CALLS <= visit.calls < fake.calls
    assert 0 < visit.p50_us <= visit.p99_us <= visit.seconds * 1e6
    assert visit.seconds >= SECONDS
    assert visit.cpu_seconds > 0
    assert fake.open == 0


def test_a_slow_call_is_made_often_enough() -> None:
    fake = Fake()
    assert visits.visit(fake, Work("request", 8), 1e-9, PIDS).calls == measure.MINIMUM_CALLS


def test_several_callers_call_at_the_same_time() -> None:
    fake = Fake()
    visit = visits.visit(fake, Work("request", 8, callers=3), SECONDS, PIDS)
    assert len(fake.threads - {threading.get_ident()}) == 3
    assert visit.calls >= 3 * measure.MINIMUM_CALLS


def test_an_error_in_a_caller_ends_the_visit() -> None:
    class Breaking(Fake):
        @contextmanager
        def call(self, work: Work) -> Iterator[Call]:
            main = threading.get_ident()
            right = answer(payload(work.size), work.reads)

            def call() -> int:
                if threading.get_ident() != main:
                    raise ConnectionError("gone")
                return right

            yield call

    with pytest.raises(ConnectionError, match="gone"):
        visits.visit(Breaking(), Work("request", 8, callers=2), SECONDS, PIDS)


@pytest.mark.parametrize("wrong_from", [0, 20])
def test_a_wrong_answer_is_no_figure(wrong_from: int) -> None:
    with pytest.raises(measure.WrongAnswerError):
        visits.visit(Fake(wrong_from), Work("request", 8), SECONDS, PIDS)


def test_streams_are_made_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only messages move on, by a microsecond each."""
    fake = Fake()
    clock = SimpleNamespace(perf_counter=lambda: fake.calls / 1e6)
    monkeypatch.setattr(visits, "time", clock)
    visit = visits.visit(fake, Work("stream", 8), SECONDS, PIDS)
    *probes, length = sorted({*fake.lengths})
    assert probes == [visits.STREAM_MINIMUM, 64, 1024]
    assert length == pytest.approx(SECONDS * 1e6, abs=2)
    assert visit.calls == length * fake.lengths.count(length)
    assert visit.p50_us == pytest.approx(1)
    assert visit.seconds == pytest.approx(visit.calls / 1e6)


def test_a_stream_of_very_large_messages_may_be_one_message() -> None:
    class Slow(Fake):
        @contextmanager
        def stream(self, work: Work) -> Iterator[Stream]:
            def send(count: int) -> int:
                self.lengths.append(count)
                sum(range(100_000))
                return count

            yield send

    fake = Slow()
    visits.visit(fake, Work("stream", 1 << 40), 1e-9, PIDS)
    assert set(fake.lengths) == {1}


def test_samples_of_a_stream_are_of_one_message() -> None:
    found = visits.visit(Fake(), Work("stream", 8), SECONDS, PIDS)
    assert found.min_us is not None
    assert found.samples_us
    assert min(found.samples_us) == pytest.approx(found.min_us, abs=0.001)


@pytest.mark.parametrize("wrong_from", [0, 3])
def test_a_stream_that_loses_a_message_is_no_figure(wrong_from: int) -> None:
    with pytest.raises(measure.WrongAnswerError):
        visits.visit(Fake(wrong_from), Work("stream", 8), SECONDS, PIDS)


def test_cpu_time_counts_all_threads_ended_ones_too() -> None:
    def work() -> None:
        sum(range(300_000))

    before = cpu.seconds(PIDS)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with_thread = cpu.seconds(PIDS)
    assert with_thread > before
    assert cpu.seconds(PIDS * 2) >= 2 * with_thread


def test_memcpy_is_a_contender_without_a_server() -> None:
    with Memcpy().connect("memory", "") as client:
        visit = visits.visit(client, Work("pull", 4096, reads=True), SECONDS, PIDS)
    assert visit.path == "memory"
    assert visit.min_us is not None
    assert len(visit.samples_us) == min(visit.calls, measure.MOST_KEPT)
    assert all(each >= round(visit.min_us, 3) for each in visit.samples_us)
