# SPDX-License-Identifier: Apache-2.0
"""The first segment of each message between a queue's server and its clients; the segments of items
follow it. The one place of this package that reads what a peer chose.

A client that puts sends ``Put``, and is answered by ``Settled``; one that gets sends ``Ask``, each
of which is answered by one ``Items``. Either stream begins with the server's ``Opened``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from tensorwire.malformed import MALFORMED
from tensorwire.queue.encoded import Encoded, Pack, Packed
from tensorwire.queue.store import Stats
from tensorwire.tensors import MAX_TENSORS, DecodeError

if TYPE_CHECKING:
    from typing_extensions import Buffer as BytesLike

    from tensorwire.queue.store import Item

MAX_ITEMS: Final = 4096
"""In one message."""
MAX_CONTROL_BYTES: Final = 32 << 10

_PACKED: Final = 4 << 10
"""Bytes of an item up to which a copy costs less than a segment."""
_SHORT: Final = 32
"""Bytes of control segments that are kept decoded, because they are mostly the same."""
_MOST: Final = (1 << 63) - 1


class Opened(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """``session``: by which other calls name the stream."""

    session: int
    capacity: int
    capacity_bytes: int
    room: int
    room_bytes: int


class Put(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Items follow, each of so many segments; or ``packed`` items of two segments of the same
    lengths: the first one, which they share, and a segment that has all the second ones. ``ask``:
    the server shall say what is settled."""

    counts: tuple[int, ...]
    packed: int
    ask: bool


class Settled(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The first ``count`` items of the stream are in the queue, or were withdrawn; there is room
    for so many more, and bytes."""

    count: int
    room: int
    room_bytes: int


class Ask(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """For 1 to ``most`` items. ``taken``: of all that came, so many have been taken by the
    program."""

    number: int
    most: int
    taken: int


class Items(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Items follow, as after ``Put``; none when the question was withdrawn."""

    counts: tuple[int, ...]
    packed: int


class Withdraw(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Items ``first`` to ``last`` of a stream that puts, as far as they are not in the queue; or
    the question ``last`` of one that gets."""

    session: int
    first: int
    last: int


class Withdrawn(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """So many of the items are in the queue all the same."""

    accepted: int


Control = Opened | Put | Settled | Ask | Items | Withdraw | Withdrawn
T = TypeVar("T", Opened, Put, Settled, Ask, Items, Withdraw, Withdrawn)

_encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final[dict[type[Control], Any]] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (Opened, Put, Settled, Ask, Items, Withdraw, Withdrawn)
}
_stats_decoder: Final = msgspec.msgpack.Decoder(Stats)


def encode(control: Control | Stats) -> bytes:
    return _encoder.encode(control)


def put_message(items: Sequence[Item], ask: bool) -> list[BytesLike]:
    counts, packed, segments = _joined(items)
    return [_encoded_put(counts, packed, ask), *segments]


def items_message(items: Sequence[Item]) -> list[BytesLike]:
    counts, packed, segments = _joined(items)
    return [_encoded_items(counts, packed), *segments]


@lru_cache(256)
def _encoded_put(counts: tuple[int, ...], packed: int, ask: bool) -> bytes:
    return _encoder.encode(Put(counts, packed, ask))


@lru_cache(256)
def _encoded_items(counts: tuple[int, ...], packed: int) -> bytes:
    return _encoder.encode(Items(counts, packed))


def _joined(items: Sequence[Item]) -> tuple[tuple[int, ...], int, list[BytesLike]]:
    """Counts, how many are packed, and segments."""
    if len(items) > 1 and (parts := _alike(items)):
        return (), len(items), [items[0].segments[0], b"".join(parts)]
    segments: list[BytesLike] = []
    for item in items:
        segments += item.segments
    return tuple([len(item.segments) for item in items]), 0, segments


def _alike(items: Sequence[Item]) -> list[BytesLike]:
    """The second segments of items that can be packed; none if they cannot."""
    first = items[0]
    header = first.segments[0]
    if type(header) is not bytes or not len(header) < first.nbytes <= _PACKED:
        return []
    parts: list[BytesLike] = []
    for item in items:
        segments = item.segments
        if item.nbytes != first.nbytes or len(segments) != 2 or segments[0] != header:
            return []
        parts.append(segments[1])
    return parts


def decode(kind: type[T], segment: BytesLike) -> T:
    """Raises DecodeError."""
    nbytes = memoryview(segment).nbytes
    if not 1 <= nbytes <= MAX_CONTROL_BYTES:
        raise DecodeError(f"a control segment of {nbytes} bytes")
    data = bytes(segment)
    return _decoded_again(kind, data) if nbytes <= _SHORT else _decoded(kind, data)


def _decoded(kind: type[T], data: bytes) -> T:
    try:
        found: T = _decoders[kind].decode(data)
    except MALFORMED as error:
        raise DecodeError(f"malformed control segment: {error}") from None
    for value in msgspec.structs.astuple(found):
        if isinstance(value, int) and not 0 <= value <= _MOST:
            raise DecodeError(f"a number of {value}")
    return found


@lru_cache(256)
def _decoded_again(kind: type[T], data: bytes) -> T:
    return _decoded(kind, data)


def decode_stats(segment: BytesLike) -> Stats:
    """Raises DecodeError."""
    try:
        return _stats_decoder.decode(segment)
    except MALFORMED as error:
        raise DecodeError(f"malformed statistics: {error}") from None


def split(control: Put | Items, segments: Sequence[Any]) -> list[Encoded] | list[Packed]:
    """The items behind a control segment. segments: of bytes, as they were received. Raises
    DecodeError."""
    counts = control.counts
    count = control.packed or len(counts)
    if count > MAX_ITEMS:
        raise DecodeError(f"{count} items in a message: at most {MAX_ITEMS}")
    if control.packed:
        if counts or len(segments) != 3:
            raise DecodeError("packed items with the wrong segments")
        return _unpacked(control.packed, bytes(segments[1]), memoryview(segments[2]))
    if any(not 1 <= count <= MAX_TENSORS + 1 for count in counts):
        raise DecodeError("an item of no segment, or of too many")
    if sum(counts) != len(segments) - 1:
        raise DecodeError(f"{len(segments) - 1} segments of items, {sum(counts)} announced")
    items = []
    at = 1
    for count in counts:
        own = segments[at : at + count]
        items.append(Encoded(own, sum(map(len, own))))
        at += count
    return items


def _unpacked(count: int, header: bytes, packed: memoryview) -> list[Packed]:
    size, rest = divmod(len(packed), count)
    if rest or not size:
        raise DecodeError(f"{len(packed)} bytes of {count} packed items")
    pack = Pack(header, packed, size)
    nbytes = len(header) + size
    return [Packed(pack, index, nbytes) for index in range(count)]
