# SPDX-License-Identifier: Apache-2.0
"""Many arrays in one operation: small ones side by side, so that they wait for others once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tensorwire.collective.arrays import Array, check_writable, refuse_others, type_of

_ALONE: Final = 64 << 10
"""Bytes from which on an array goes alone: copying it costs more than waiting once more."""
_TOGETHER: Final = 4 << 20


def kinds(arrays: Sequence[Array]) -> dict[np.dtype[Any], int]:
    """The core's number of each type. Raises TypeError where the core knows none."""
    for i, array in enumerate(arrays):
        refuse_others(array, f"array {i}")
    return {array.dtype: type_of(array) for array in arrays}


def check(arrays: Sequence[Array]) -> None:
    """Each can be written, and has a type that the core knows."""
    kinds(arrays)
    for i, array in enumerate(arrays):
        check_writable(array, f"array {i}")


def _batches(arrays: Sequence[Array]) -> list[list[int]]:
    """Places: of those of one type together, in the order of the first ones, up to so many
    bytes."""
    found: list[list[int]] = []
    open_ones: dict[str, tuple[list[int], int]] = {}
    for place, array in enumerate(arrays):
        if array.nbytes >= _ALONE:
            found.append([place])
            continue
        last = open_ones.get(array.dtype.name)
        if last is None or last[1] + array.nbytes > _TOGETHER:
            last = ([], 0)
            found.append(last[0])
        batch, filled = last
        batch.append(place)
        open_ones[array.dtype.name] = (batch, filled + array.nbytes)
    return found


def in_place(arrays: Sequence[Array], operation: Callable[[Array], None], together: bool) -> None:
    """``operation`` on each array, or on several side by side; what it leaves there goes back."""
    batches = _batches(arrays) if together else [[place] for place in range(len(arrays))]
    for batch in batches:
        if len(batch) == 1:
            operation(arrays[batch[0]])
            continue
        flat = np.concatenate([arrays[place].reshape(-1) for place in batch])
        operation(flat)
        at = 0
        for place in batch:
            array = arrays[place]
            array[...] = flat[at : at + array.size].reshape(array.shape)
            at += array.size


def by_rows(
    arrays: Sequence[Array], operation: Callable[[Array], Array], together: bool
) -> list[Array]:
    """What ``operation`` makes of each array of rows, or of several whose rows are side by side: it
    may change how many rows there are, and not how long they are."""
    batches = _batches(arrays) if together else [[place] for place in range(len(arrays))]
    found: dict[int, Array] = {}
    for batch in batches:
        if len(batch) == 1:
            found[batch[0]] = operation(np.ascontiguousarray(arrays[batch[0]]))
            continue
        rows = operation(np.concatenate([arrays[place] for place in batch], axis=1))
        ends = np.cumsum([arrays[place].shape[1] for place in batch[:-1]])
        found.update(zip(batch, np.split(rows, ends, axis=1), strict=True))
    return [found[place] for place in range(len(arrays))]
