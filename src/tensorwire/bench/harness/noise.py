# SPDX-License-Identifier: Apache-2.0
"""How quiet the host is: two loops that always do the same, and how far their times are apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Final

import numpy as np

from tensorwire.bench.harness.measure import quantile

TURNS: Final = 40
WARM_UP: Final = 5
"""Turns ahead of those, in which pages are mapped and the clock of a processor rises."""
COPIED: Final = 8 << 20
"""Bytes of a copy: more than a core's own caches hold."""
QUIET: Final = 0.2
"""The spread up to which a host is quiet."""
DRIFT: Final = 0.1
"""By how much a loop may take longer, or shorter, than another time."""
SPUN: Final = 20_000
"""Additions of a spin, of Python's own."""

JUDGED: Final = ("spin", "copy_8m")
"""Loops that run warm. A file may have others, which are apart on a quiet host, too."""

Loop = tuple[float, float]
"""The median time of a turn in microseconds, and the spread."""


def check() -> dict[str, dict[str, float]]:
    """Takes about 0.2 s. Of ``spin`` (one core, no memory) and of ``copy_8m`` (memory): the median
    time of a turn in microseconds, and the spread: the 90th percentile of the turns less the 10th,
    as a part of the median. On a quiet host the spread is a few hundredths."""
    source, target = np.ones(COPIED, np.uint8), np.ones(COPIED, np.uint8)
    return {
        "spin": _figures(lambda: sum(range(SPUN))),
        "copy_8m": _figures(lambda: np.copyto(target, source)),
    }


def verdict(before: Mapping[str, Loop], after: Mapping[str, Loop]) -> str:
    """A sentence where the host was not quiet; empty where it was, or nobody looked."""
    found = [
        f"turns of {name} were apart by {spread:.0%} {when}"
        for when, loops in (("before", before), ("after", after))
        for name, (_, spread) in loops.items()
        if spread > QUIET and name in JUDGED
    ]
    for name in before.keys() & after.keys() & {*JUDGED}:
        was, now = before[name][0], after[name][0]
        if was and abs(now / was - 1) > DRIFT:
            found.append(f"{name} took {now / was:.2f}x as long after the run as before")
    return f"This host was not quiet: {'; '.join(sorted(found))}." if found else ""


def _figures(turn: Callable[[], object]) -> dict[str, float]:
    times = []
    for _ in range(WARM_UP):
        turn()
    for _ in range(TURNS):
        before = time.perf_counter_ns()
        turn()
        times.append((time.perf_counter_ns() - before) / 1e3)
    times.sort()
    middle = median(times)
    spread = (quantile(times, 0.9) - quantile(times, 0.1)) / middle
    return {"median_us": middle, "spread": spread}
