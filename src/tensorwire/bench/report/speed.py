# SPDX-License-Identifier: Apache-2.0
"""How many times faster one row is than another one, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from tensorwire.bench.report.runs import Measured

Field = Literal["p50_us", "calls_per_s", "items_per_s"]

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 2000
LEAST_ROUNDS: Final = 5
"""Of fewer there is no interval: what is drawn of three rounds misses the truth in one of ten to
four, where an interval of 95 % should in one of twenty."""
SEED: Final = 1
"""The same rounds have the same interval each time."""


@dataclass(frozen=True)
class Ratio:
    """How many times faster. low, high: the interval of 95 % confidence by the bootstrap over
    rounds; None where there are fewer than five. noise: without the interval, how far the rounds of
    the one and of the other were apart, as parts of their medians, together; None where there are
    one or two rounds, which are near each other by chance, or the run does not tell."""

    value: float
    low: float | None = None
    high: float | None = None
    noise: float | None = None

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the two differ by more than their rounds do; None: that cannot be known."""
        if self.low is not None and self.high is not None:
            return not self.low <= 1 <= self.high
        if self.noise is not None:
            return max(self.value, 1 / self.value) > 1 + self.noise
        return None


def figure(measured: Measured) -> Field | None:
    """By which a row is compared: several callers, and what a suite compares so, by calls in all, a
    training by images, all others by the time of a call."""
    row = measured.row
    if (row.callers > 1 or measured.figure == "calls_per_s") and row.calls_per_s and row.p50_us:
        return "calls_per_s"
    if row.p50_us:
        return "p50_us"
    if row.items_per_s:
        return "items_per_s"
    return "calls_per_s" if row.calls_per_s else None


def times(measured: Measured, base: Measured) -> float | None:
    """How many times faster ``measured`` is than ``base``; None where they have no figure in
    common."""
    name = figure(measured)
    if name is None:
        return None
    ours, theirs = getattr(measured.row, name), getattr(base.row, name)
    if not ours or not theirs:
        return None
    return float(theirs / ours if name == "p50_us" else ours / theirs)


def ratio(measured: Measured, base: Measured, *, paired: bool) -> Ratio | None:
    """The same with how sure it is. paired: they were measured in the same rounds."""
    name, value = figure(measured), times(measured, base)
    if name is None or value is None:
        return None
    above, below = getattr(measured.rounds, name), getattr(base.rounds, name)
    if name == "p50_us":
        above, below = below, above
    interval = bootstrap(above, below, paired=paired)
    if interval is not None:
        return Ratio(value, *interval)
    spreads = (measured.row.p50_spread, base.row.p50_spread)
    known = not {1, 2} & {len(above), len(below)}
    return Ratio(
        value, noise=sum(filter(None, spreads)) if known and spreads != (None, None) else None
    )


def bootstrap(
    above: Sequence[float], below: Sequence[float], *, paired: bool
) -> tuple[float, float] | None:
    """The interval of median(above) / median(below) by the percentile bootstrap (B. Efron and R.
    Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13): rounds are drawn with
    replacement, those of a pair together, and the middle 95 % of the ratios is taken. None with
    fewer than five rounds of either, and where a figure is 0."""
    if min(len(above), len(below)) < LEAST_ROUNDS or min(*above, *below) <= 0:
        return None
    generator = np.random.default_rng(SEED)
    drawn = generator.integers(0, len(above), (RESAMPLES, len(above)))
    together = paired and len(above) == len(below)
    other = drawn if together else generator.integers(0, len(below), (RESAMPLES, len(below)))
    tops = np.median(np.asarray(above)[drawn], axis=1)
    ratios = tops / np.median(np.asarray(below)[other], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return float(low), float(high)
