# SPDX-License-Identifier: Apache-2.0
"""How quiet the host is: two loops that always do the same, and how far their times are apart."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Final

import numpy as np

from tensorwire.bench.harness.measure import quantile

TURNS: Final = 40
COPIED: Final = 2 << 20
"""Bytes of a copy."""
SPUN: Final = 20_000
"""Additions of a spin, of Python's own."""


def check() -> dict[str, dict[str, float]]:
    """Takes about 60 ms. Of ``spin`` (one core, no memory) and of ``copy`` (memory): the median
    time of a turn in microseconds, and the spread: the 90th percentile of the turns less the 10th,
    as a part of the median. On a quiet host the spread is a few hundredths."""
    source, target = np.ones(COPIED, np.uint8), np.ones(COPIED, np.uint8)
    return {
        "spin": _figures(lambda: sum(range(SPUN))),
        "copy": _figures(lambda: np.copyto(target, source)),
    }


def _figures(turn: Callable[[], object]) -> dict[str, float]:
    times = []
    for _ in range(TURNS):
        before = time.perf_counter_ns()
        turn()
        times.append((time.perf_counter_ns() - before) / 1e3)
    times.sort()
    middle = median(times)
    spread = (quantile(times, 0.9) - quantile(times, 0.1)) / middle
    return {"median_us": middle, "spread": spread}
