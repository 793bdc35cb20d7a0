# SPDX-License-Identifier: Apache-2.0
"""Whether what was chosen is as good as it should be: beside the defaults and fixed values, which
are measured anew."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from tensorwire import transports
from tensorwire.bench.harness.measure import quantile
from tensorwire.bench.suites.links.curves import CALM, Fixed, Plan, Shape, Visits
from tensorwire.bench.suites.links.tuning import (
    LARGE,
    PARTS,
    SEVERAL,
    SIZES,
    chunking,
    coalescing,
    cuts,
    default_of,
    mean,
)

WITHIN: Final = 1.05
NEVER_BELOW: Final = 0.9
"""What the check asks for: within so much of the best fixed value at each size, and for each shape
so much of the defaults' speed at least."""
SMALLEST: Final = 256
FIXED: Final = (0, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 1 << 20)
"""Bytes up to which segments are copied along, of the fixed values."""


@dataclass(frozen=True)
class Checked:
    """Messages of so many segments of one size, in microseconds by the mean of all shapes of them:
    with the defaults, as tuned, and with the fixed value that is fastest there. worst: of the
    shapes, how many times as fast as with the defaults that one is which gains least. The times are
    of the calm quarter; those of each round are in ``default_rounds_us`` and so on."""

    size: int
    default_us: float
    tuned_us: float
    best_us: float
    segments: int = 1
    worst: float = 1.0
    default_rounds_us: Sequence[float] = ()
    tuned_rounds_us: Sequence[float] = ()
    best_rounds_us: Sequence[float] = ()

    @property
    def passed(self) -> bool:
        return (
            self.tuned_us <= self.best_us * WITHIN
            and self.tuned_us * NEVER_BELOW <= self.default_us
            and self.worst >= NEVER_BELOW
        )


def fixed_values(default: Fixed) -> list[Fixed]:
    return [Fixed(min(default.coalesce, each), each, default.chunk) for each in FIXED]


def checks(transport: str, found: Fixed) -> Plan:
    """Segments with each value of the threshold for copying, several small ones with each for
    coalescing and large ones with each for chunks; all of them as by default and as tuned."""
    default = default_of(transport)
    origins = ("ordinary", "published") if transports.lends(transport) else ("ordinary",)
    plan = []
    for segments, size in (
        *((1, size) for size in dict.fromkeys((SMALLEST, *SIZES, *LARGE))),
        *((count, size) for count, sizes in (PARTS, SEVERAL) for size in sizes),
    ):
        small = segments > 1 and size in PARTS[1]
        others = coalescing(default) if small else fixed_values(default)
        if size in LARGE:
            others = [*others, *(chunking(default) if cuts(transport) else [])]
        links = list(dict.fromkeys([default, found, *others]))
        for case in ("call", "stream"):
            for origin in ("ordinary",) if small else origins:
                shape = Shape(case, origin, size, segments)
                if len({does(fixed, shape, cuts(transport)) for fixed in links}) > 1:
                    plan.append((shape, links))
    return plan


def copies(fixed: Fixed, size: int) -> bool:
    """Whether a segment of that size is copied along."""
    return size <= max(fixed.eager, fixed.coalesce)


def does(fixed: Fixed, shape: Shape, in_chunks: bool) -> Hashable:
    """What a link does with a shape, the same for links that differ in what does not matter to it.
    in_chunks: whether its transport cuts large ones."""
    copied = copies(fixed, shape.size)
    chunk = min(fixed.chunk, shape.size) if in_chunks and not copied else 0
    return copied, fixed.coalesce if shape.segments > 1 else 0, chunk


def compare(visits: Visits, default: Fixed, found: Fixed, *, in_chunks: bool) -> list[Checked]:
    """Links that do the same with a shape count as one there: what they differ by is chance."""
    pooled: dict[Shape, dict[Hashable, list[list[float]]]] = {}
    for (shape, fixed), each in visits.items():
        ways = pooled.setdefault(shape, {})
        ways.setdefault(does(fixed, shape, in_chunks), []).append(each)
    rows = []
    for segments, size in sorted({(shape.segments, shape.size) for shape in pooled}):
        own = [each for s, each in pooled.items() if (s.segments, s.size) == (segments, size)]
        shape = next(s for s in pooled if (s.segments, s.size) == (segments, size))
        known = {way for each in own for way in each}
        took = [{way: _calm(chain(*each[way])) for way in known} for each in own]
        means = {way: mean(each[way] for each in took) for way in known}
        usual, tuned = (does(fixed, shape, in_chunks) for fixed in (default, found))
        best = min(means, key=lambda way: means[way])
        rows.append(
            Checked(
                *(size, means[usual], means[tuned], means[best], segments),
                min(each[usual] / each[tuned] for each in took),
                *(_rounds([each[way] for each in own]) for way in (usual, tuned, best)),
            )
        )
    return rows


def _calm(figures: Iterable[float]) -> float:
    return quantile(sorted(figures), CALM)


def _rounds(shapes: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """Of each round, the mean of all shapes. shapes: of each, the rounds of links that do the
    same."""
    of_shapes = [[_calm(turn) for turn in zip(*links, strict=True)] for links in shapes]
    return [mean(turn) for turn in zip(*of_shapes, strict=True)]
