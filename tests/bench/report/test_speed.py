# SPDX-License-Identifier: Apache-2.0
"""How many times faster, and how sure that is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bench.report.made import measured

from tensorwire.bench.report.speed import LEAST_ROUNDS, Ratio, bootstrap, figure, ratio, times

ROUNDS = st.lists(st.floats(0.001, 1e9), min_size=LEAST_ROUNDS, max_size=12)


@settings(max_examples=30)
@given(ROUNDS, ROUNDS)
def test_an_interval_has_the_ratio_of_medians_within(
    above: list[float], below: list[float]
) -> None:
    for paired in (True, False):
        interval = bootstrap(above, below, paired=paired)
        assert interval is not None
        low, high = interval
        assert low <= high
        least, most = min(above) / max(below), max(above) / min(below)
        assert least * (1 - 1e-9) <= low
        assert high <= most * (1 + 1e-9)


@settings(max_examples=30)
@given(ROUNDS, st.floats(0.01, 100))
def test_rounds_that_only_have_another_unit_differ_by_it(rounds: list[float], unit: float) -> None:
    interval = bootstrap([unit * each for each in rounds], rounds, paired=True)
    assert interval == pytest.approx((unit, unit))


def test_a_disturbance_of_both_is_none_of_their_ratio() -> None:
    """Rounds of a run are interleaved: what slows one contender slows the other one."""
    below = [10.0, 30.0, 11.0, 25.0, 12.0, 40.0]
    above = [2 * each for each in below]
    together = bootstrap(above, below, paired=True)
    apart = bootstrap(above, below, paired=False)
    assert together is not None
    assert apart is not None
    assert together == pytest.approx((2, 2))
    assert apart[0] < 1.5 < 2.5 < apart[1]


def test_rounds_of_one_value_are_certain_and_the_same_rounds_give_the_same() -> None:
    assert bootstrap([4.0] * 6, [2.0] * 5, paired=False) == (2, 2)
    above, below = [1.0, 2.0, 3.0, 4.0, 3.0], [1.0, 5.0, 2.0, 4.0, 6.0]
    again = [bootstrap(above, below, paired=False) for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize(
    ("above", "below"),
    [([1.0] * 4, [1.0] * 5), ([1.0] * 5, [0.0, 1.0, 2.0, 3.0, 4.0]), ([], [])],
)
def test_too_little_for_an_interval(above: list[float], below: list[float]) -> None:
    assert bootstrap(above, below, paired=False) is None


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({}, "p50_us"),
        ({"callers": 2}, "calls_per_s"),
        ({"p50_us": None, "items_per_s": 3.0}, "items_per_s"),
        ({"callers": 2, "p50_us": None, "items_per_s": 3.0}, "items_per_s"),
        ({"p50_us": None}, "calls_per_s"),
        ({"p50_us": None, "calls_per_s": None}, None),
    ],
)
def test_by_what_rows_are_compared(more: dict[str, Any], name: str | None) -> None:
    assert figure(measured("zmq", [1, 2, 3], **more)) == name


def test_less_time_and_more_calls_are_faster() -> None:
    rounds = [10, 10, 11, 12, 12], [20, 20, 22, 24, 24]
    fast, slow = (measured("zmq", each) for each in rounds)
    assert times(fast, slow) == 2
    several = [measured("zmq", each, callers=4) for each in rounds]
    assert times(*several) == 2
    by = ratio(fast, slow, paired=True)
    assert by is not None
    assert by.low is not None
    assert by.high is not None
    assert by.low <= by.value == 2 <= by.high
    assert times(fast, measured("zmq", [1, 2, 3], p50_us=None)) is None


@pytest.mark.parametrize(
    ("by", "beyond"),
    [
        (Ratio(0.5, 0.4, 0.9), True),
        (Ratio(0.5, 0.4, 1.1), False),
        (Ratio(2.0, 1.5, 2.5), True),
        (Ratio(0.5, noise=0.9), True),
        (Ratio(0.5, noise=1.1), False),
        (Ratio(1.2, noise=0.1), True),
        (Ratio(9.0), None),
    ],
)
def test_what_is_beyond_noise(by: Ratio, beyond: bool | None) -> None:
    assert by.beyond_noise is beyond


@pytest.mark.parametrize(("rounds", "noise"), [(1, None), (2, None), (3, 0.75), (4, 0.75)])
def test_of_few_rounds_noise_is_their_spread(rounds: int, noise: float | None) -> None:
    """One round is not apart from anything, and two are near each other by chance."""
    ours = measured("zmq", [1] * rounds, p50_spread=0.25)
    by = ratio(ours, measured("zmq", [2] * 9, p50_spread=0.5), paired=False)
    assert by is not None
    assert (by.low, by.noise) == (None, noise)
