# SPDX-License-Identifier: Apache-2.0
"""Items as they are put, and as they come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tensorwire import tensors

if TYPE_CHECKING:
    from typing_extensions import Buffer as BytesLike

    from tensorwire.queue.store import Item


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """An item with segments of its own."""

    segments: Sequence[BytesLike]
    nbytes: int


MAX_SEGMENTS: Final = 65_534
"""Of items in one message. The core takes one more: the control segment."""
_NONE: Final = object()


class Pack:
    """Items that are one array each, all of one type and shape: a header, and a segment that has
    the memory of all, one after the other."""

    __slots__ = ("_arrays", "header", "memory", "size")

    def __init__(self, header: bytes, memory: memoryview, size: int) -> None:
        """size: of an item in ``memory``, which is a multiple of it."""
        self.header = header
        self.memory = memory
        self.size = size
        self._arrays: Any = None

    def array(self, index: int) -> Any:
        """Of NumPy. None: it has to be decoded from its segments."""
        arrays = self._arrays
        if arrays is None:
            arrays = tensors.stacked(self.header, self.memory, self.size)
            self._arrays = arrays = _NONE if arrays is None else arrays
        return None if arrays is _NONE else arrays[index]


class Packed(msgspec.Struct, frozen=True, gc=False):
    """An item of a pack."""

    pack: Pack
    index: int
    nbytes: int

    @property
    def segments(self) -> Sequence[BytesLike]:
        pack = self.pack
        at = self.index * pack.size
        return pack.header, pack.memory[at : at + pack.size]


def segments_of(items: Iterable[Item]) -> int:
    """How many. They are fewer than bytes: a header has some of each other segment."""
    return sum([2 if type(item) is Packed else len(item.segments) for item in items])


def first_fitting(items: Sequence[Item], most_bytes: int) -> int:
    """How many of the first items go into one message; a single one does in any case."""
    nbytes = segments = 0
    for count, item in enumerate(items):
        nbytes += item.nbytes
        segments += segments_of((item,))
        if count and (nbytes > most_bytes or segments > MAX_SEGMENTS):
            return count
    return len(items)
