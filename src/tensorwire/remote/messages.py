# SPDX-License-Identifier: Apache-2.0
"""What a device asks a host: MessagePack of these structures, in calls on their link.
Fields that this version does not know are passed over."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec

from tensorwire.malformed import MALFORMED
from tensorwire.remote.handle import Bits, DTypeName, Extents, Handle, Id, Name, Number
from tensorwire.tensors import MAX_RANK, DecodeError, TensorSpec

SERVICE: Final = "tensorwire.v1.Remote"
MAX_BYTES: Final = 16 << 10
"""Of a request, and of a reply."""


class Greeting(msgspec.Struct, frozen=True):
    """The reply to Greet, which has an empty request."""

    instance: Id
    """Of the host."""
    probe: Number
    """A region of memory made to be accessed: whether it is mapped says how the rest goes."""


class Open(msgspec.Struct, frozen=True):
    """By name, or by handle."""

    name: Name | None = None
    handle: Handle | None = None


class Allocate(msgspec.Struct, frozen=True):
    shape: Extents
    dtype: DTypeName
    name: Name | None = None
    shared: Bits = 0
    """Rights of other peers, which open it by its name or handle."""


class Opened(msgspec.Struct, frozen=True):
    """The reply to Open and Allocate."""

    handle: Handle
    """Of the whole."""
    region: Number
    """The link's name for it."""
    signal: Number
    """That of its word for signals; 0: there is none."""
    rights: Bits
    opening: Number
    """Of all that the peer has opened of this tensor, this one."""


class Close(msgspec.Struct, frozen=True):
    """Gives back what was opened, or allocated; the reply is empty. To be sent again where none has
    come."""

    number: Number
    opening: Number


class Attach(msgspec.Struct, frozen=True):
    """Begins to send on a channel."""

    name: Name
    credit: Number
    """A region of the sender's, with a word for how many slots were given back, of all so far."""


class Attached(msgspec.Struct, frozen=True):
    slots: Opened
    shape: Annotated[tuple[Number | None, ...], msgspec.Meta(max_length=MAX_RANK)]
    dtype: DTypeName
    max_bytes: Number
    sent: Number
    """How many tensors have come so far, and ..."""
    free: Number
    """... how many of their slots were given back."""


class Detach(msgspec.Struct, frozen=True):
    """No more comes; the reply is empty."""

    name: Name
    sent: Number


class Notice(msgspec.Struct, frozen=True):
    """What a sender writes of a tensor whose shape is not known ahead, after the length of this in
    ``LENGTH_BYTES`` bytes, and where it lies: from the beginning of a region of the sender's."""

    shape: Extents
    region: Number


LENGTH_BYTES: Final = 4
NOTICE_BYTES: Final = 1024
"""Of a slot for notices. The longest has 64 extents of 9 bytes."""


def is_static(spec: TensorSpec) -> bool:
    """Whether all of a channel's tensors have one shape."""
    return spec.shape is not None and None not in spec.shape


M = TypeVar("M", bound=msgspec.Struct)
_encoder: Final = msgspec.msgpack.Encoder()
# Made by the import: threads that make the first one of a type at once crash in msgspec.
_decoders: Final[dict[type[msgspec.Struct], Any]] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (Greeting, Open, Allocate, Opened, Close, Attach, Attached, Detach, Notice)
}


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes, kind: type[M]) -> M:
    """DecodeError: it is none. Nothing is decoded of what is too long."""
    if len(data) > MAX_BYTES:
        raise DecodeError(f"no {kind.__name__}: {len(data)} bytes, of at most {MAX_BYTES}")
    try:
        message: M = _decoders[kind].decode(data)
    except MALFORMED as error:
        raise DecodeError(f"no {kind.__name__}: {error}") from None
    return message
