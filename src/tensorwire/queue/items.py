# SPDX-License-Identifier: Apache-2.0
"""Objects as items of a queue, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np

from tensorwire import _core, arrays, tensors
from tensorwire.queue.encoded import MAX_SEGMENTS, Encoded, Packed
from tensorwire.queue.errors import TooLargeError
from tensorwire.tensors import frameworks

if TYPE_CHECKING:
    from tensorwire.queue.store import Item
    from tensorwire.tensors import Framework

SMALL: Final = 16 << 10
"""Bytes: such items, and segments, travel in messages themselves."""


def checked_framework(framework: Framework) -> Framework:
    """Raises ValueError, and ImportError when it cannot be imported: later, that would cost an
    item."""
    if framework not in get_args(tensors.Framework):
        raise ValueError(f"framework is one of {get_args(tensors.Framework)}, not {framework!r}")
    if framework not in ("numpy", "same"):
        frameworks.load_framework(framework)
    return framework


def encoded(obj: object, name: str, capacity_bytes: int) -> Item:
    """Over the memory of its tensors; a small one has memory of its own. Raises TooLargeError, and
    what ``tensors.dumps`` raises."""
    if type(obj) is np.ndarray and obj.nbytes < SMALL and (header := tensors.header_of(obj)):
        nbytes = len(header) + obj.nbytes
        if nbytes <= capacity_bytes:
            return Encoded((header, obj.tobytes()), nbytes)
    segments = tensors.dumps(obj)
    if len(segments) > MAX_SEGMENTS:
        raise TooLargeError(
            f"an item of {len(segments) - 1} arrays for queue {name!r}: at most "
            f"{MAX_SEGMENTS - 1} go into a message: send them in parts, or stacked"
        )
    nbytes = 0
    for segment in segments:
        nbytes += len(segment)
    if nbytes > capacity_bytes:
        raise TooLargeError(
            f"an item of {nbytes} bytes never fits into queue {name!r}, whose capacity_bytes is "
            f"{capacity_bytes}: make that larger, or send the item in parts"
        )
    return Encoded(tuple(map(bytes, segments)) if nbytes <= SMALL else segments, nbytes)


def kept(item: Item) -> Item:
    """The same in memory that nobody writes any more: what was published stays where it is, the
    rest is copied, into the arena while that has room."""
    return Encoded([_kept(segment) for segment in item.segments], item.nbytes)


def _kept(segment: Any) -> Any:
    if isinstance(segment, bytes) or _core.is_published(segment):
        return segment
    if segment.nbytes <= SMALL:
        return bytes(segment)
    try:
        copy = arrays.empty(segment.nbytes, np.uint8)
    except arrays.ArenaFullError:
        return bytes(segment)
    copy[:] = segment
    return arrays.publish(copy).data


def decoded(item: Item, framework: Framework) -> Any:
    """Raises DecodeError."""
    if framework == "numpy" and type(item) is Packed:
        array = item.pack.array(item.index)
        if array is not None:
            return array
    return tensors.loads(item.segments, framework=framework)
