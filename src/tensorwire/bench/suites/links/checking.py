# SPDX-License-Identifier: Apache-2.0
"""Whether what was chosen is as good as it should be: beside the defaults and fixed values, which
are measured anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensorwire.bench.harness.measure import quantile
from tensorwire.bench.suites.links.curves import CALM, Fixed, Plan, Visits
from tensorwire.bench.suites.links.tuning import BULK, COPIED, DEFAULT, default_of, mean, plan

WITHIN: Final = 1.05
NEVER_BELOW: Final = 0.9
"""What the check asks for: within so much of the best fixed value at each size, and so much of the
defaults' speed at least."""
FIXED: Final = tuple(
    Fixed(min(DEFAULT.coalesce, nbytes), nbytes, DEFAULT.chunk)
    for nbytes in (0, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 1 << 20)
)


@dataclass(frozen=True)
class Checked:
    """One size, in microseconds by the mean of all shapes of it: with the defaults, as tuned, and
    with the fixed value of the threshold that is fastest there."""

    size: int
    default_us: float
    tuned_us: float
    best_us: float

    @property
    def passed(self) -> bool:
        return (
            self.tuned_us <= self.best_us * WITHIN
            and self.tuned_us * NEVER_BELOW <= self.default_us
        )


def checks(transport: str, found: Fixed) -> Plan:
    links = list(dict.fromkeys([default_of(transport), found, *FIXED]))
    return [(shape, links) for shape, each in plan(transport) if each == (COPIED, BULK)]


def copies(fixed: Fixed, size: int) -> bool:
    """Whether a segment of that size is copied along."""
    return size <= max(fixed.eager, fixed.coalesce)


def compare(visits: Visits, default: Fixed, found: Fixed) -> list[Checked]:
    """Links that do the same with a size count as one there: what they differ by is chance."""
    rows = []
    for size in sorted({shape.size for shape, _ in visits}):
        shapes = {shape for shape, _ in visits if shape.size == size}
        took = {
            way: mean(
                quantile(
                    sorted(
                        us
                        for (own, fixed), each in visits.items()
                        if own == shape and copies(fixed, size) == way
                        for us in each
                    ),
                    CALM,
                )
                for shape in shapes
            )
            for way in (True, False)
        }
        usual, tuned = (took[copies(fixed, size)] for fixed in (default, found))
        rows.append(Checked(size, usual, tuned, min(took.values())))
    return rows
