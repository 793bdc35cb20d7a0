# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays as the core takes them: memory in C order, a number of elements, and a type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Runs = list[tuple[int, int]]
"""Offset and size in bytes, for each rank."""

# Names of NumPy's and ml_dtypes' types.
TYPES: Final[dict[str, int]] = {
    "float64": 0,
    "float32": 1,
    "float16": 2,
    "bfloat16": 3,
    "float8_e4m3fn": 4,
    "float8_e5m2": 5,
    "int8": 6,
    "int16": 7,
    "int32": 8,
    "int64": 9,
    "uint8": 10,
    "uint16": 11,
    "uint32": 12,
    "uint64": 13,
    "bool": 14,
}

# NumPy makes the name of a type anew each time, which takes as long as a small operation.
_known: Final[dict[np.dtype[Any], int]] = {}


def refuse_others(array: object, what: str) -> None:
    """Raises TypeError where it is no array of NumPy."""
    if not isinstance(array, np.ndarray):
        kind = f"{type(array).__module__}.{type(array).__name__}"
        raise TypeError(
            f"{what} is a {kind}, and has to be of NumPy; operations of one array take those of "
            "other frameworks, and lists of them"
        )


def type_of(array: Array) -> int:
    kind = _known.get(array.dtype)
    if kind is not None:
        return kind
    kind = TYPES.get(array.dtype.name)
    if kind is None:
        raise TypeError(f"arrays of {array.dtype} have no collectives: {', '.join(TYPES)} have")
    if not array.dtype.isnative:
        raise TypeError(f"arrays of {array.dtype} have no collectives: their bytes are swapped")
    _known[array.dtype] = kind
    return kind


def row_bytes(array: Array) -> int:
    return int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize


def runs(rows: Sequence[int], row: int) -> Runs:
    """Side by side, of so many rows each."""
    found, at = [], 0
    for count in rows:
        found.append((at, count * row))
        at += count * row
    return found


def room(array: Array) -> Array:
    """Itself, or memory in C order for :func:`put_back`."""
    return array if array.flags.c_contiguous else np.empty(array.shape, array.dtype)


def put_back(written: Array, to: Array) -> None:
    if written is not to:
        to[...] = written


def same_memory(one: Array, other: Array) -> bool:
    """Of two arrays in C order."""
    starts = [array.__array_interface__["data"][0] for array in (one, other)]
    return starts[0] == starts[1] and one.nbytes == other.nbytes


def apart(array: Array, out: Array, own: tuple[Array, Array] | None = None) -> Array:
    """The array in C order; a copy where writing ``out`` would change it, unless ``own``, a part of
    one and a part of the other, are the same memory."""
    if not array.flags.c_contiguous:
        return np.ascontiguousarray(array)
    if array is out or not np.may_share_memory(array, out):
        return array
    return array if own is not None and same_memory(*own) else array.copy()


def check_writable(array: Array, name: str) -> None:
    """Each of its elements can be written, and is no other one."""
    refuse_others(array, name)
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only")
    if array.flags.c_contiguous:
        return
    reach = array.itemsize  # of what the axes so far span
    axes = zip(array.strides, array.shape, strict=True)
    for step, count in sorted((abs(step), count) for step, count in axes if count > 1):
        if step < reach:
            raise ValueError(f"elements of {name} lie in the same memory")
        reach += step * (count - 1)


def check_shape(array: Array, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(
            f"{name} is {array.dtype} of shape {array.shape}, not {dtype} of shape {shape}"
        )


def place_for(shape: tuple[int, ...], dtype: np.dtype[Any], out: Array | None) -> Array:
    """For a result: ``out``, which has to have it, or a new array."""
    if out is None:
        return np.empty(shape, dtype)
    check_shape(out, shape, dtype, "out")
    check_writable(out, "out")
    return out


def rooted(run: tuple[int, int], root: int, size: int) -> Runs:
    """It, for or from the root alone."""
    return [run if rank == root else (0, 0) for rank in range(size)]


def shares_of(array: Array, rows: Sequence[int] | None, size: int, name: str) -> Sequence[int]:
    """How many rows of it each rank gets: so many, or equally many."""
    if array.ndim == 0:
        raise ValueError("an array without axes has no rows to give")
    if rows is None:
        if array.shape[0] % size != 0:
            raise ValueError(f"the first axis of {array.shape} cannot be shared by {size} ranks")
        return [array.shape[0] // size] * size
    if len(rows) != size or min(rows) < 0 or sum(rows) != array.shape[0]:
        raise ValueError(f"{name} needs {size} numbers of rows that add up to {array.shape[0]}")
    return rows


def check_rows(rows: Sequence[int], array: Array, rank: int, size: int, name: str) -> None:
    """That of this rank is what the array has."""
    if len(rows) != size or min(rows) < 0:
        raise ValueError(f"rows needs {size} numbers of rows")
    if array.ndim == 0 or array.shape[0] != rows[rank]:
        raise ValueError(
            f"{name} has the shape {array.shape}, and rank {rank} has {rows[rank]} rows"
        )
