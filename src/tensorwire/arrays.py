# SPDX-License-Identifier: Apache-2.0
"""Arrays born in the arena, from where they travel to processes on this host without a copy."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, SupportsIndex, TypeVar, overload

import numpy as np

from tensorwire import _core, environment
from tensorwire.tensors import MAX_DEPTH, dtypes, frameworks
from tensorwire.tensors.errors import PartError

__all__ = ["ArenaFullError", "arena_stats", "empty", "empty_like", "full", "publish", "zeros"]

Array = np.ndarray[Any, Any]
Shape = SupportsIndex | Sequence[SupportsIndex]
Key = TypeVar("Key")

_RESOURCE_EXHAUSTED: Final = 8
_MAX_BYTES: Final = (1 << 63) - 1


class ArenaFullError(MemoryError):
    """The arena has no room; the text names the setting that sets its size."""


def empty(shape: Shape, dtype: object = np.float32, *, timeout: float | None = 0.0) -> Array:
    """A writable array in the arena, in C order, with undefined contents.

    Its memory is freed with its last view. A send copies it once within the arena, since it may
    still be written; after ``publish`` it travels without a copy.

    dtype: numbers, bool, datetime64 or timedelta64, also by a name of ml_dtypes (``"bfloat16"``).

    timeout: how many seconds to wait for room when the arena is full, None for ever.

    Raises ``ArenaFullError``, ``TypeError`` for a dtype that cannot travel or needs ml_dtypes where
    that is not installed, ``ValueError`` for a negative or overflowing shape.
    """
    extents = _extents(shape)
    parsed = dtypes.parse(dtype)
    nbytes = math.prod(extents) * parsed.itemsize
    if math.prod(extent for extent in extents if extent) * parsed.itemsize > _MAX_BYTES:
        raise ValueError(f"an array of shape {extents} and dtype {parsed} is too large")
    if nbytes == 0:
        return np.empty(extents, parsed)
    memory: Any = _allocate(nbytes, timeout)
    return np.ndarray(extents, parsed, memory)


def zeros(shape: Shape, dtype: object = np.float32, *, timeout: float | None = 0.0) -> Array:
    """``empty``, filled with zeros."""
    return full(shape, 0, dtype, timeout=timeout)


def full(
    shape: Shape, value: object, dtype: object = np.float32, *, timeout: float | None = 0.0
) -> Array:
    """``empty``, filled with ``value``."""
    array = empty(shape, dtype, timeout=timeout)
    array[...] = value
    return array


def empty_like(tensor: object, *, timeout: float | None = 0.0) -> Array:
    """``empty`` with the shape and dtype of a tensor of any framework, without its values."""
    found = frameworks.signature(tensor)
    if found is None:
        raise TypeError(f"a {type(tensor).__name__} is no tensor")
    name, shape = found
    return empty(shape, dtypes.own(name), timeout=timeout)


def copy_all(pairs: Iterable[tuple[Array, Array]]) -> None:
    """Copies to the first array of each pair what the second holds, of the same shape and dtype:
    all that lies in C order as one copy, which goes past the caches where it is large."""
    runs = []
    for to, from_ in pairs:
        if to.flags.c_contiguous and from_.flags.c_contiguous:
            runs.append((frameworks.raw(to), frameworks.raw(from_)))
        else:
            np.copyto(to, from_)
    _core.copy_all(runs)


@overload
def publish(  # type: ignore[overload-overlap]
    tensor: Mapping[Key, Any], *, timeout: float | None = 0.0
) -> dict[Key, Any]: ...
@overload
def publish(  # type: ignore[overload-overlap]
    tensor: list[Any], *, timeout: float | None = 0.0
) -> list[Any]: ...
@overload
def publish(  # type: ignore[overload-overlap]
    tensor: tuple[Any, ...], *, timeout: float | None = 0.0
) -> tuple[Any, ...]: ...
@overload
def publish(tensor: object, *, timeout: float | None = 0.0) -> Array: ...
def publish(tensor: object, *, timeout: float | None = 0.0) -> object:
    """A read-only array with the values of ``tensor`` that travels without a copy.

    A dense tensor that lies in the arena is published where it is: its whole block counts as
    read-only from now on. If ``tensor`` is an array, it becomes read-only itself, and so does the
    array that it is a view of; whoever holds other views of the block, or a tensor of a framework
    over it, promises not to write through them: receivers may be reading the very same memory.
    Any other tensor, of any framework, is copied once into the arena.

    Of a dict (or other mapping), list or tuple, such as a ``state_dict``, each tensor in it, at any
    depth: the result is a new dict, list or tuple of the same shape, in which what is no tensor is
    as it was.

    Raises ``TypeError`` for what is no tensor, has none in it, cannot travel, or has a dtype that
    needs ml_dtypes where that is not installed; ``ArenaFullError`` when a copy has no room. What
    was published before then stays so.
    """
    if not isinstance(tensor, (Mapping, list, tuple)):
        return _publish_one(tensor, timeout)
    published: list[Array] = []
    try:
        tree = _publish_all(tensor, timeout, published, 0)
    except PartError as error:
        raise TypeError(error.sentence("tensor")) from error.__cause__
    if not published:
        raise TypeError(f"a {type(tensor).__name__} is no tensor, and there is none in it")
    return tree


def _publish_all(part: object, timeout: float | None, published: list[Array], depth: int) -> Any:
    """Raises PartError."""
    if isinstance(part, np.generic):  # a number, or text, which travels by itself
        return part
    if not isinstance(part, (Mapping, list, tuple)):
        try:
            if frameworks.signature(part) is None:
                return part
            published.append(_publish_one(part, timeout))
        except TypeError as error:
            raise PartError(str(error)) from error
        return published[-1]
    if depth >= MAX_DEPTH:
        raise PartError(f"nested deeper than {MAX_DEPTH} levels, or holding itself")
    found = {}
    key: object = None
    try:
        for key, item in part.items() if isinstance(part, Mapping) else enumerate(part):
            found[key] = _publish_all(item, timeout, published, depth + 1)
    except PartError as error:
        raise error.within(key) from error.__cause__
    if isinstance(part, Mapping):
        return found
    return list(found.values()) if isinstance(part, list) else tuple(found.values())


def _publish_one(tensor: object, timeout: float | None) -> Array:
    host = frameworks.as_host(tensor)
    if host is None:
        raise TypeError(f"a {type(tensor).__name__} is no tensor")
    array, dtype = host.array, dtypes.own(host.dtype)
    if array.dtype != dtype:
        array = array.view(dtype)
    order = frameworks.dense_order(array)
    if order is not None and _publish(array, order):
        view: object = tensor  # up to the array over the arena, which keeps the others writable
        while isinstance(view, np.ndarray):
            view.flags.writeable = False
            view = view.base
        array.flags.writeable = False
        return array
    order = order or tuple(range(array.ndim))
    copy = empty([array.shape[axis] for axis in order], array.dtype, timeout=timeout)
    result = copy.transpose(np.argsort(order))
    result[...] = array
    if copy.nbytes and not _publish(result, order):
        raise RuntimeError("memory from the arena is unknown to the arena")
    # First the base: over a writable one, the result could be made writable again.
    copy.flags.writeable = False
    result.flags.writeable = False
    return result


def empty_within(quota: _core.Quota, nbytes: int) -> Array:
    """Bytes in the arena, to be written and published; leases of them count within ``quota``.
    Raises ``ArenaFullError``."""
    if nbytes == 0:
        return np.empty(0, np.uint8)
    memory: Any = _allocate(nbytes, 0.0, quota)
    return np.ndarray((nbytes,), np.uint8, memory)


def arena_stats() -> dict[str, int]:
    """State of this process's arena.

    In bytes: ``capacity`` (the limit), ``wanted`` (a limit that would have spared the copies that
    were made for want of room or of a lease; 0: there were none), ``reserved`` (address space),
    ``resident``, ``used`` (blocks that are alive), ``leased`` (read by other processes),
    ``high_water`` (of ``resident``). Counts: ``slabs``, ``blocks``. Beside the arena, memory for
    messages that arrive over a network, in bytes: ``pool_capacity`` (the limit of what is kept),
    ``pool_used``, ``pool_idle``, and ``pool_posted`` (made ready for ``bytes`` of a size that has
    come before). Counts of its buffers: ``pool_recycled``, ``pool_fresh``, ``pool_dropped``. And of
    memory that is made for peers to access, as by ``remote.Host.empty``: ``shared_capacity`` and
    ``shared_used`` in bytes, and in how many pieces, ``shared_memories``.
    """
    return _core.arena_stats()


def _extents(shape: Shape) -> tuple[int, ...]:
    items = shape if isinstance(shape, Sequence) else (shape,)
    extents = tuple(operator.index(item) for item in items)
    if any(extent < 0 for extent in extents):
        raise ValueError(f"negative extent in shape {extents}")
    return extents


def _allocate(nbytes: int, timeout: float | None, quota: _core.Quota | None = None) -> _core.Buffer:
    try:
        return _core.allocate(nbytes, timeout, quota)
    except _core.StatusError as error:
        if error.code == _RESOURCE_EXHAUSTED:
            raise ArenaFullError(error.details) from None
        environment.check()  # it says more of a setting that is wrong
        raise


def _publish(array: Array, order: tuple[int, ...]) -> bool:
    return array.nbytes > 0 and _core.publish(frameworks.raw(array.transpose(order)))
