# SPDX-License-Identifier: Apache-2.0
"""What a call carries: how many buffers, and of how many bytes each.

Categories, ranges and schemes are those of TF-gRPC-Bench (BPOE-9, 2018, Tables 1 and 2 and section
3.2). Where that leaves something open, it is decided here and told.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tensorwire.bench.harness.work import format_size
from tensorwire.bench.inventories import load

KB: Final = 1 << 10
MB: Final = 1 << 20

Payload = tuple[int, ...]
"""Bytes of each buffer, in the order in which they are sent."""


@dataclass(frozen=True)
class Category:
    """least, most: bytes that a buffer of it may have."""

    name: str
    default: int
    least: int
    most: int


SMALL: Final = Category("small", 10, 1, KB - 1)
MEDIUM: Final = Category("medium", 10 * KB, KB, MB - 1)
LARGE: Final = Category("large", MB, MB, 10 * MB)
CATEGORIES: Final = {each.name: each for each in (SMALL, MEDIUM, LARGE)}

SCHEMES: Final = ("uniform", "random", "skew", "custom")
BUFFERS: Final = 10
"""Of a payload, unless the user says otherwise."""
MOST_BUFFERS: Final = 65_535
MOST_BYTES: Final = (2 << 30) - MB
"""Of all payloads of a workload, which senders hold: what a gRPC message can, with room for the
framing of protobuf."""
DRAWS: Final = 8
"""Payloads that the random scheme draws; calls take them in turn."""
_SKEW: Final = {3: (6, 3, 1), 2: (6, 4)}
"""Shares of the categories, in tenths. The paper has those of three."""


@dataclass(frozen=True)
class Workload:
    """The payloads that calls carry, in turn: the first call the first one."""

    name: str
    payloads: tuple[Payload, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for payloads that cannot be sent."""
        if not self.payloads or not all(self.payloads):
            raise ValueError(f"{self.name}: a payload has at least one buffer")
        for payload in self.payloads:
            if len(payload) > MOST_BUFFERS:
                raise ValueError(
                    f"{self.name}: {len(payload)} buffers in a payload: it has at most "
                    f"{MOST_BUFFERS}"
                )
        together = sum(map(sum, set(self.payloads)))
        if together > MOST_BYTES:
            raise ValueError(
                f"{self.name}: its payloads have {together} bytes: {MOST_BYTES} is the most, which "
                "a message of gRPC's can hold"
            )

    @property
    def nbytes(self) -> int:
        """Of a payload, in the mean."""
        return round(sum(map(sum, self.payloads)) / len(self.payloads))


@dataclass(frozen=True)
class Sizes:
    """Bytes of a buffer of each category. Raises ValueError for one out of its range."""

    small: int = SMALL.default
    medium: int = MEDIUM.default
    large: int = LARGE.default

    def __post_init__(self) -> None:
        for category in CATEGORIES.values():
            size = self.of(category.name)
            if not category.least <= size <= category.most:
                raise ValueError(
                    f"{size} bytes are no {category.name} buffer: those have "
                    f"{format_size(category.least)} to {format_size(category.most)} bytes"
                )

    def of(self, category: str) -> int:
        return {"small": self.small, "medium": self.medium, "large": self.large}[category]


@dataclass(frozen=True)
class Mix:
    """Of what a scheme makes payloads.

    categories: those that take part, in the order in which uniform repeats them. buffers: of a
    payload. bias: the category of which skew has most. pattern: the letters of the custom scheme.
    seed: of the random scheme's draws.
    """

    sizes: Sizes = Sizes()
    categories: tuple[str, ...] = tuple(CATEGORIES)
    buffers: int = BUFFERS
    bias: str = "large"
    pattern: str = ""
    seed: int = 1


def workload(scheme: str, mix: Mix) -> Workload:
    """By one of ``SCHEMES``. Raises ValueError."""
    _check(mix)
    if scheme == "uniform":
        names = [uniform(mix.categories, mix.buffers)]
    elif scheme == "random":
        names = draws(mix.categories, mix.buffers, mix.seed)
    elif scheme == "skew":
        names = [skew(mix.categories, mix.buffers, mix.bias)]
    elif scheme == "custom":
        names = [custom(mix.pattern)]
    else:
        raise ValueError(f"{scheme!r} is no scheme; there are {', '.join(SCHEMES)}")
    return Workload(scheme, tuple(tuple(map(mix.sizes.of, each)) for each in names))


def of_model(model: str) -> Workload:
    """One payload with all trainable tensors of a model. Raises ValueError."""
    return Workload(model, (tuple(4 * tensor.elements for tensor in load(model)),))


def _check(mix: Mix) -> None:
    unknown = [name for name in mix.categories if name not in CATEGORIES]
    if unknown or not mix.categories:
        raise ValueError(f"{', '.join(unknown) or 'none'}: no categories; {_known()}")
    if len(set(mix.categories)) < len(mix.categories):
        raise ValueError(f"{', '.join(mix.categories)}: a category counts once")
    if not 1 <= mix.buffers <= MOST_BUFFERS:
        raise ValueError(f"{mix.buffers} buffers: a payload has 1 to {MOST_BUFFERS}")


def _known() -> str:
    return f"there are {', '.join(CATEGORIES)}"


def uniform(categories: Sequence[str], buffers: int) -> list[str]:
    """The categories again and again, as many of each as there can be; what is left over goes to
    the larger ones."""
    by_size = [name for name in reversed(CATEGORIES) if name in categories]
    each, left = divmod(buffers, len(categories))
    counts = {name: each + (by_size.index(name) < left) for name in categories}
    found: list[str] = []
    while len(found) < buffers:
        for name in categories:
            if counts[name]:
                counts[name] -= 1
                found.append(name)
    return found


def draws(categories: Sequence[str], buffers: int, seed: int) -> list[list[str]]:
    """``DRAWS`` payloads, whose buffers are drawn one by one; the same for the same seed."""
    _two("random", categories)
    chance = random.Random(seed)
    return [chance.choices(categories, k=buffers) for _ in range(DRAWS)]


def skew(categories: Sequence[str], buffers: int, bias: str) -> list[str]:
    """60 % of the biased category, 30 % and 10 % of the others, the larger one first; with a bias
    to small ones the medium one first. Of two categories, 60 % and 40 %. The counts are the
    nearest whole ones."""
    _two("skew", categories)
    if bias not in categories:
        raise ValueError(f"a bias to {bias}, and the categories are {', '.join(categories)}")
    others = [name for name in reversed(CATEGORIES) if name in categories and name != bias]
    if bias == SMALL.name:
        others.reverse()
    order = [bias, *others]
    counts = _apportioned(_SKEW[len(order)], buffers)
    return [name for name, count in zip(order, counts, strict=True) for _ in range(count)]


def _apportioned(tenths: Sequence[int], total: int) -> list[int]:
    """Whole numbers that add up to the total; what is left over goes to the largest remainders."""
    counts = [share * total // 10 for share in tenths]
    by_remainder = sorted(range(len(tenths)), key=lambda i: -(tenths[i] * total % 10))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def custom(pattern: str) -> list[str]:
    """Of letters as ``SMSSL``."""
    letters: Mapping[str, str] = {name[0].upper(): name for name in CATEGORIES}
    found = [letters.get(letter, "") for letter in pattern.upper()]
    if not found or not all(found):
        raise ValueError(f"{pattern!r} is no pattern: write S, M and L, as SMSSL")
    return found


def _two(scheme: str, categories: Sequence[str]) -> None:
    if len(categories) < 2:
        raise ValueError(
            f"{scheme} needs two categories or more, and there is {', '.join(categories)} alone: "
            f"give --categories {','.join(CATEGORIES)}"
        )
