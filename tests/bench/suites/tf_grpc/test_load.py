# SPDX-License-Identifier: Apache-2.0
"""Calls of a worker and their times, by a clock that stands still between them."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.bench.harness.measure import WrongAnswerError, thinned
from tensorwire.bench.suites.tf_grpc import load
from tensorwire.bench.suites.tf_grpc.contender import Begin, Call
from tensorwire.bench.suites.tf_grpc.load import Times, Turns, Window

MS = 1_000_000


class Clock:
    """time.monotonic_ns and time.sleep, of which only the latter, and calls, make it later."""

    def __init__(self) -> None:
        self.now = 5_000 * MS

    def monotonic_ns(self) -> int:
        self.now += 1
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)

    def call(self, *milliseconds: int) -> Call:
        """That takes so long, the last time again and again."""
        left = list(milliseconds)

        def call() -> int:
            self.now += (left.pop(0) if len(left) > 1 else left[0]) * MS
            return 7

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    fake = SimpleNamespace(monotonic_ns=clock.monotonic_ns, sleep=clock.sleep)
    monkeypatch.setattr(load, "time", fake)
    return clock


def about(nanoseconds: int) -> float:
    return round(nanoseconds / MS, 1)


def test_a_stall_is_the_time_of_a_call(clock: Clock) -> None:
    turns = Turns([[clock.call(10, 500, 10)]], [7])
    times = Times.of(turns.timed(0, 0.6, 0))
    assert [about(each) for each in times.told] == [10, 500, *[10] * 9]
    assert times.total == pytest.approx(times.seconds * 1e9), "no time between calls is left out"
    assert (about(times.least), about(times.most), times.calls) == (10, 500, 11)


def test_at_a_rate_calls_that_come_late_count_from_when_they_were_due(clock: Clock) -> None:
    turns = Turns([[clock.call(1, 350, 1)]], [7])
    times = Times.of(turns.timed(clock.now, 0.8, 10))
    found = [about(each) for each in times.told]
    assert found == [1, 350, 251, 152, 53, 1, 1, 1]


def test_a_worker_waits_for_the_begin(clock: Clock) -> None:
    turns = Turns([[clock.call(10)]], [7])
    begin = clock.now + 100 * MS
    turns.until(begin)
    assert clock.now >= begin
    assert about(clock.now - begin) <= 10


@pytest.mark.parametrize(
    ("call", "begin", "behind"), [(10, 25, 0.5), (10, 30, 0.0), (900, 90, 0.9), (10, -50, 1.0)]
)
def test_how_much_of_the_warm_up_lies_behind_the_begin(
    clock: Clock, call: int, begin: int, behind: float
) -> None:
    turns = Turns([[clock.call(call)]], [7])
    assert turns.until(clock.now + begin * MS) == pytest.approx(behind, abs=0.001)


@pytest.mark.parametrize(("begin", "behind"), [(25, 2.5), (-50, 3.0)])
def test_how_much_of_a_window_lies_behind_the_begin(
    clock: Clock, begin: int, behind: float
) -> None:
    """Three calls are under way, of which one ends each 10 ms."""
    window = Window([[lambda: clock.call(10)]], [7], 3)
    assert window.until(clock.now + begin * MS) == pytest.approx(behind, abs=0.001)


def test_there_is_one_call_at_least(clock: Clock) -> None:
    turns = Turns([[clock.call(900)]], [7])
    turns.until(0)
    assert len(turns.timed(0, 0.001, 0).durations) == 1
    assert len(turns.timed(0, 0.001, 5).durations) == 1


def test_each_payload_goes_to_each_server_in_turn() -> None:
    made: list[tuple[int, int]] = []

    def call(server: int, payload: int) -> Call:
        def noted() -> int:
            made.append((server, payload))
            return payload

        return noted

    turns = Turns([[call(s, p) for p in range(2)] for s in range(3)], [0, 1])
    for _ in range(7):
        turns()
    assert made == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 0)]


def test_every_answer_is_compared() -> None:
    answers = iter([4, 4, 5])
    turns = Turns([[lambda: next(answers)]], [4])
    turns()
    turns()
    with pytest.raises(WrongAnswerError, match="answered 5, expected 4"):
        turns()


def test_a_window_of_calls_is_under_way(clock: Clock) -> None:
    under_way: list[int] = []
    most: list[int] = []

    def begins(server: int) -> Begin:
        def begin() -> Call:
            under_way.append(server)
            most.append(len(under_way))

            def end() -> int:
                assert under_way.pop(0) == server, "they end in the order in which they began"
                clock.now += 10 * MS
                return server

            return end

        return begin

    window = Window([[begins(0), begins(1)]], [0, 1], 3)
    window.until(clock.now + 100 * MS)
    assert not under_way, "what warms up ends before the clock starts"
    begin, before = clock.now, len(most)
    times = Times.of(window.timed(0, 0.2))
    assert most[before:] == [1, 2, *[3] * (times.calls - 2)]
    assert not under_way
    assert times.calls == len(most) - before
    assert [about(each) for each in times.told[:4]] == [10, 20, 30, 30]
    assert times.seconds == pytest.approx((clock.now - begin) / 1e9, abs=1e-3)
    with pytest.raises(ValueError, match="no window"):
        window.timed(0, 0.1, 5.0)


def test_every_answer_of_a_window_is_compared(clock: Clock) -> None:
    answers = iter([4, 4, 5])
    window = Window([[lambda: lambda: next(answers)]], [4], 2)
    with pytest.raises(WrongAnswerError, match="answered 5, expected 4"):
        window.timed(0, 1.0)


@given(st.lists(st.integers(), max_size=50), st.integers(1, 20))
def test_what_is_told_is_evenly_spaced(values: list[int], most: int) -> None:
    found = list(thinned(values, most))
    assert len(found) == min(len(values), most)
    if len(values) <= most:
        assert found == values
    places = thinned(range(len(values)), most)
    gaps = {after - before for before, after in itertools.pairwise(places)}
    assert not gaps or max(gaps) - min(gaps) <= 1
