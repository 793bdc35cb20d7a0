# SPDX-License-Identifier: Apache-2.0
"""Which boxes of the weights each rank holds, and what is in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.weights.contender import RESHARDED, shapes
from tensorwire.weights import Shard
from tensorwire.weights.layouts import Split, box_of

Holding = Mapping[str, Shard]

_COLUMNS: Final = frozenset({"3", "5"})
"""Matrices of a layer that receivers cut by columns: those whose products they would add up."""
_VECTORS: Final = frozenset({"6", "7"})
"""Tensors of a layer of which each receiver has all."""


def held(work: Work, rank: int, ranks: int, trainers: int) -> Holding:
    """What a rank holds: all of each tensor, which then has one axis. Of the case ``RESHARDED``
    trainers hold rows, as FSDP cuts tensors, and receivers rows or columns, as tensor parallelism
    does; matrices are matrices."""
    sizes = shapes(work.size)
    if work.case != RESHARDED:
        return {name: Shard.whole((size,), "uint8") for name, size in sizes.items()}
    found = {}
    for name, size in sizes.items():
        place = name.rpartition(".")[2]
        shape = (size,) if place in _VECTORS else _matrix(size)
        if rank < trainers:
            found[name] = _cut(shape, Split(0), rank, trainers)
        else:
            split = None if place in _VECTORS else Split(1 if place in _COLUMNS else 0)
            found[name] = _cut(shape, split, rank - trainers, ranks - trainers)
    return found


def _matrix(size: int) -> tuple[int, int]:
    """About square, with a power of two of columns."""
    columns = math.gcd(size, 1 << (size.bit_length() // 2))
    return size // columns, columns


def _cut(shape: tuple[int, ...], split: Split | None, rank: int, ranks: int) -> Shard:
    start, extent = box_of(shape, (ranks,), (rank,), (split,))
    return Shard(start, extent, shape, "uint8")


def values(shard: Shard, number: int) -> np.ndarray[Any, Any]:
    """The elements of version ``number``, or one that all of them are equal to. Of a matrix no row
    or column is like one that lies a power of two from it."""
    if len(shard.shape) == 1:
        return np.array(number % 251, np.uint8)
    rows, columns = (
        (np.arange(at, at + extent) * step % 251).astype(np.uint8)
        for at, extent, step in zip(shard.start, shard.shape, (7, 3), strict=True)
    )
    found: np.ndarray[Any, Any] = (rows + np.uint8(number % 251))[:, None] + columns
    return found


def intersections(sources: Sequence[Holding], target: Holding) -> int:
    """Bytes that the target has in common with each of the sources, one after the other."""
    return sum(
        math.prod(
            max(0, min(a + m, b + n) - max(a, b))
            for a, m, b, n in zip(
                source[name].start, source[name].shape, box.start, box.shape, strict=True
            )
        )
        for source in sources
        for name, box in target.items()
    )
