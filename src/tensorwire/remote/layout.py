# SPDX-License-Identifier: Apache-2.0
"""Where the elements of a part of a tensor lie: arithmetic, which moves nothing."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Final, SupportsIndex

import numpy as np
import numpy.typing as npt

Index = SupportsIndex | slice | EllipsisType
Rows = npt.NDArray[np.uint64]

KIND, REGION, OFFSET, LOCAL, LENGTH, STRIDE, LOCAL_STRIDE, COUNT = range(8)
"""Columns of what the core's ``prepare`` takes. A row is ``count`` runs of ``length`` bytes, each
``stride`` (at the peer) and ``local_stride`` (here) bytes after the one before."""
COLUMNS: Final = 8
MAX_RUNS: Final = 1 << 24


def extents_of(shape: SupportsIndex | Iterable[SupportsIndex]) -> tuple[int, ...]:
    """Of a shape as callers give it, NumPy's integers among them. TypeError."""
    try:
        return (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        return tuple(map(operator.index, shape))  # type: ignore[arg-type]


def dense(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of an array in C order."""
    strides = []
    step = itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


@dataclass(frozen=True)
class Layout:
    """A part of memory as an array. offset, strides: bytes."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @classmethod
    def whole(cls, shape: tuple[int, ...], itemsize: int) -> Layout:
        return cls(0, shape, dense(shape, itemsize), itemsize)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def reach(self) -> int:
        """Bytes from the beginning of the memory to the end of the last element."""
        if 0 in self.shape:
            return self.offset
        last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        return self.offset + last + self.itemsize

    @property
    def is_dense(self) -> bool:
        """In C order, without gaps."""
        return 0 in self.shape or self.runs() == (self.nbytes, [])

    def part(self, index: Index | tuple[Index, ...]) -> Layout:
        """As NumPy's basic indexing. IndexError: outside, or too many indices; TypeError: neither
        integers, slices nor ``...``; ValueError: a step that is not positive."""
        indices = index if isinstance(index, tuple) else (index,)
        given = sum(1 for each in indices if each is not Ellipsis)
        if len(indices) - given > 1:
            raise IndexError("an index can have a single '...'")
        if given > len(self.shape):
            raise IndexError(f"too many indices: {given}, for a tensor of {len(self.shape)} axes")
        if given == len(indices):
            indices = (*indices, Ellipsis)
        offset, axis = self.offset, 0
        shape: list[int] = []
        strides: list[int] = []
        for each in indices:
            if each is Ellipsis:
                kept = len(self.shape) - given
                shape += self.shape[axis : axis + kept]
                strides += self.strides[axis : axis + kept]
                axis += kept
                continue
            extent, stride = self.shape[axis], self.strides[axis]
            if isinstance(each, slice):
                start, stop, step = each.indices(extent)
                if step < 1:
                    raise ValueError(f"a step of {step}: steps of a remote tensor are positive")
                count = len(range(start, stop, step))
                offset += start * stride if count else 0
                shape.append(count)
                strides.append(stride * step)
            else:
                offset += _position(each, extent, axis) * stride
            axis += 1
        return Layout(offset, tuple(shape), tuple(strides), self.itemsize)

    def runs(self) -> tuple[int, list[tuple[int, int]]]:
        """As few and as long contiguous runs as there are: their length in bytes, and the axes over
        which they repeat, as (count, stride in bytes), the outermost first."""
        length = self.itemsize
        axes: list[tuple[int, int]] = []
        for extent, stride in reversed(list(zip(self.shape, self.strides, strict=True))):
            if extent == 1:
                continue
            if not axes and stride == length:
                length *= extent
            elif axes and stride == axes[-1][0] * axes[-1][1]:
                axes[-1] = (axes[-1][0] * extent, axes[-1][1])
            else:
                axes.append((extent, stride))
        return length, axes[::-1]

    def rows(self, kind: int, region: int, local: int) -> Rows:
        """What moves it to or from dense memory, which begins at byte ``local``."""
        if 0 in self.shape:
            return np.empty((0, COLUMNS), np.uint64)
        length, axes = self.runs()
        *outer, (count, stride) = axes or [(1, length)]
        offsets: npt.NDArray[np.uint64] = np.full(1, self.offset, np.uint64)
        for extent, step in outer:
            each = np.arange(extent, dtype=np.uint64) * np.uint64(step)
            offsets = (offsets[:, None] + each).reshape(-1)
        rows = np.empty((len(offsets), COLUMNS), np.uint64)
        rows[:] = (kind, region, 0, 0, length, stride, length, count)
        rows[:, OFFSET] = offsets
        rows[:, LOCAL] = np.uint64(local) + np.arange(len(rows), dtype=np.uint64) * np.uint64(
            length * count
        )
        return rows

    def picked(self, wanted: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Numbers of its first axis, from integers as NumPy has them. IndexError, TypeError."""
        if not self.shape:
            raise IndexError("a tensor without axes has no rows")
        if wanted.dtype.kind not in "iu" and wanted.size:
            raise TypeError(f"rows are integers, not {wanted.dtype}")
        extent = self.shape[0]
        numbers = wanted.reshape(-1)
        outside = (numbers < -extent) | (numbers >= extent)
        if outside.any():
            raise IndexError(f"row {numbers[outside][0]} is outside of a tensor with {extent} rows")
        numbers = numbers.astype(np.int64)  # which large ones would not survive
        return np.where(numbers < 0, numbers + extent, numbers).astype(np.uint64)

    def picked_rows(
        self, kind: int, region: int, local: int, numbers: npt.NDArray[np.uint64]
    ) -> Rows:
        """``rows`` of these places of the first axis, one after the other in dense memory.
        ValueError: too many."""
        if not len(numbers):
            return np.empty((0, COLUMNS), np.uint64)
        one = Layout(self.offset, self.shape[1:], self.strides[1:], self.itemsize)
        each = one.rows(kind, region, local)
        if len(numbers) * len(each) > MAX_RUNS:
            raise ValueError(f"more than {MAX_RUNS} runs of rows")
        found = np.tile(each, (len(numbers), 1))
        found[:, OFFSET] += np.repeat(numbers * np.uint64(self.strides[0]), len(each))
        at = np.arange(len(numbers), dtype=np.uint64) * np.uint64(one.nbytes)
        found[:, LOCAL] += np.repeat(at, len(each))
        return found


def _position(index: Any, extent: int, axis: int) -> int:
    if isinstance(index, (bool, np.bool_)):
        raise TypeError("a bool is no index of a remote tensor")
    try:
        position = operator.index(index)
    except TypeError:
        raise TypeError(
            f"{type(index).__name__} is no index of a remote tensor: integers, slices and '...' "
            "are (for many rows there are gather and scatter)"
        ) from None
    if not -extent <= position < extent:
        raise IndexError(f"index {position} is outside of axis {axis} with {extent} elements")
    return position % extent


def first_overlap(starts: Rows, lengths: Rows, strides: Rows, counts: Rows) -> int | None:
    """The beginning of a run that lies in another one, of all runs of these rows; None: there is
    none. ValueError: they are too many to tell."""
    ends = starts + (counts - np.uint64(1)) * strides + lengths
    inside = (counts > 1) & (strides < lengths)
    if inside.any():
        return int(starts[inside][0])
    if (at := _overlap(starts, ends)) is None:
        return None
    if (counts == 1).all():
        return at
    # Rows that reach into each other may have their runs side by side, as columns of a matrix have.
    times = counts.astype(np.int64)
    if int(times.sum()) > MAX_RUNS:
        raise ValueError(f"more than {MAX_RUNS} runs of tensors that reach into each other")
    which = np.repeat(np.arange(len(starts)), times)
    first = np.repeat(np.cumsum(times) - times, times)
    nth = (np.arange(len(which)) - first).astype(np.uint64)
    begins = starts[which] + nth * strides[which]
    return _overlap(begins, begins + lengths[which])


def _overlap(starts: Rows, ends: Rows) -> int | None:
    order = np.argsort(starts)
    starts, ends = starts[order], ends[order]
    found = np.flatnonzero(starts[1:] < np.maximum.accumulate(ends)[:-1])
    return int(starts[found[0] + 1]) if len(found) else None
