# SPDX-License-Identifier: Apache-2.0
"""Items as they are put, and as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tensorwire import tensors

if TYPE_CHECKING:
    from typing_extensions import Buffer as BytesLike


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """An item with segments of its own."""

    segments: Sequence[BytesLike]
    nbytes: int


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
