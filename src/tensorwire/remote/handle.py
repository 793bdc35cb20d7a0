# SPDX-License-Identifier: Apache-2.0
"""Names of memory in another process, and the rights on it."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from tensorwire import _core
from tensorwire.malformed import MALFORMED
from tensorwire.tensors import MAX_RANK, DecodeError

MAX_BYTES: Final = 4096
"""Of a handle as bytes."""
MAX_NAME: Final = 256
MAX_INTEGER: Final = (1 << 63) - 1

Id = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
Extents = Annotated[tuple[Number, ...], msgspec.Meta(max_length=MAX_RANK)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
DTypeName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Bits = Annotated[int, msgspec.Meta(ge=0, le=7)]


class Rights(enum.Flag):
    """What a peer may do in memory: read it, write it, and update its words by atomics."""

    NONE = 0
    READ = _core.MAY_READ
    WRITE = _core.MAY_WRITE
    UPDATE = _core.MAY_UPDATE


class Handle(msgspec.Struct, frozen=True, array_like=True):
    """Names a tensor, or a part of one, in the memory of one process, as long as that exposes it.

    It is a name and no key: who may open it is for the owner to say. After the owner has concealed
    the tensor, or has ended, it is good for nothing, and opening it raises ``NotFoundError``.
    """

    instance: Id
    """Of the host; random."""
    number: Number
    """Of what the host has exposed; not used again."""
    offset: Number
    """Bytes from its beginning."""
    shape: Extents
    strides: Extents
    """Bytes."""
    dtype: DTypeName

    def to_bytes(self) -> bytes:
        return _encoder.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Handle:
        """DecodeError, a ValueError: it is no handle."""
        if len(data) > MAX_BYTES:
            raise DecodeError(f"no handle: {len(data)} bytes, of at most {MAX_BYTES}")
        try:
            handle: Handle = _decoder.decode(data)
        except MALFORMED as error:
            raise DecodeError(f"no handle: {error}") from None
        return handle


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Handle)
