# SPDX-License-Identifier: Apache-2.0
"""The header of a tensor message, as bytes: the one place that reads what a peer chose.

A message is a header segment and one segment for each tensor. The header segment is a fixed prefix
(magic, version, flags, length), a msgpack part and zeros up to a multiple of 64 bytes, so that
tensors of a joined message start aligned. The msgpack part is ``[tensors, tokens]``:

* ``tensors``: ``[dtype, shape, nbytes, order, framework]`` for each segment that follows. ``order``
  lists the axes from the largest stride to the smallest, nil for C order.
* ``tokens``: the tree in pre-order. A plain value is itself; anything else is ``[mark, n]`` or
  ``[mark, n, data]``, and the parts of a container follow it. A flat list has no depth, so that
  decoding it never recurses.
"""

from __future__ import annotations

import math
import struct
from typing import Final

import msgspec

from tensorwire.malformed import MALFORMED
from tensorwire.tensors import dtypes
from tensorwire.tensors.errors import DecodeError

MAX_HEADER_BYTES: Final = 16 << 20
MAX_TENSORS: Final = 1 << 16
MAX_RANK: Final = 32
MAX_DEPTH: Final = 64
MAX_TENSOR_BYTES: Final = (1 << 63) - 1

MAGIC: Final = b"TWTN"
VERSION: Final = 1
ALIGNMENT: Final = 64
SHORT: Final = 512
"""Bytes of headers that are kept decoded."""
_MOST_BEFORE: Final = 256
_PREFIX: Final = struct.Struct("<4sHHQ")

# Marks of tokens, and what they announce. TENSOR: n is the number of its segment. LIST, TUPLE: n
# items follow. DICT: n pairs of key and value follow. COMPLEX: real and imaginary part follow.
# BYTES: data. INTEGER: data is the two's complement, little-endian. SCALAR: data is the memory of a
# NumPy scalar, the dtype's name follows.
TENSOR, LIST, TUPLE, DICT, COMPLEX, BYTES, INTEGER, SCALAR = range(8)


class Mark(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A token that is no plain value."""

    mark: int
    n: int
    data: bytes = b""


class TensorHead(
    msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True
):
    """What a receiver must know of a tensor besides its bytes."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    order: tuple[int, ...] | None
    framework: int

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


Token = None | bool | int | float | str | Mark


class Header(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    tensors: list[TensorHead]
    tokens: list[Token]


# Messages that follow one another mostly have the same structure.
_before: dict[bytes, Header] = {}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def encode(tensors: list[TensorHead], tokens: list[Token]) -> bytes:
    """The header segment. ``ValueError`` when it would break a limit that every receiver sets."""
    if len(tensors) > MAX_TENSORS:
        raise ValueError(f"{len(tensors)} tensors in one message: at most {MAX_TENSORS} can travel")
    body = _encoder.encode((tensors, tokens))
    if len(body) > MAX_HEADER_BYTES:
        raise ValueError(
            f"plain values and tensor descriptions take {len(body)} bytes: at most "
            f"{MAX_HEADER_BYTES} can travel; send long bytes and number lists as arrays "
            "(np.frombuffer(data, np.uint8))"
        )
    used = _PREFIX.size + len(body)
    return _PREFIX.pack(MAGIC, VERSION, 0, len(body)) + body + bytes(-used % ALIGNMENT)


def segment_length(start: bytes | memoryview) -> tuple[int, int]:
    """(length of the header segment, length of its msgpack part) from its first bytes."""
    if len(start) < _PREFIX.size:
        raise DecodeError(f"{len(start)} bytes are too few for the header of a tensor message")
    magic, version, flags, length = _PREFIX.unpack_from(start)
    if magic != MAGIC:
        raise DecodeError(f"no tensor message: it begins with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise DecodeError(f"tensor message of version {version}: this side reads {VERSION}")
    if flags:
        raise DecodeError(f"tensor message with unknown flags {flags:#x}")
    if length > MAX_HEADER_BYTES:
        raise DecodeError(f"header of {length} bytes: the limit is {MAX_HEADER_BYTES}")
    used = _PREFIX.size + length
    return used + -used % ALIGNMENT, length


def decode(segment: bytes | memoryview) -> Header:
    """Parses exactly one header segment and checks every tensor's description. What it returns may
    have been returned before: it is not to be changed."""
    if len(segment) > SHORT:
        return _decoded(segment)
    data = bytes(segment)
    header = _before.get(data)
    if header is None:
        header = _decoded(data)
        if len(_before) >= _MOST_BEFORE:
            _before.clear()
        _before[data] = header
    return header


def decoded_before(segment: bytes) -> Header | None:
    """What ``decode`` has returned for the same bytes lately, if it has."""
    return _before.get(segment)


def _decoded(segment: bytes | memoryview) -> Header:
    total, length = segment_length(segment)
    if len(segment) != total:
        raise DecodeError(f"header segment of {len(segment)} bytes, announced as {total}")
    body = _PREFIX.size + length
    if any(segment[body:]):
        raise DecodeError("bytes other than zero behind the header")
    try:
        header = _decoder.decode(segment[_PREFIX.size : body])
    except MALFORMED as error:
        raise DecodeError(f"malformed header: {error}") from None
    if len(header.tensors) > MAX_TENSORS:
        raise DecodeError(f"{len(header.tensors)} tensors: the limit is {MAX_TENSORS}")
    for index, head in enumerate(header.tensors):
        wrong = _objection(head)
        if wrong:
            raise DecodeError(f"tensor {index}: {wrong}")
    return header


def _objection(head: TensorHead) -> str:
    shape = head.shape
    if len(shape) > MAX_RANK:
        return f"rank {len(shape)}: the limit is {MAX_RANK}"
    try:
        itemsize = dtypes.itemsize_of(head.dtype)
    except DecodeError as error:
        return str(error)
    if shape:
        if min(shape) < 0:
            return f"negative extent in shape {list(shape)}"
        # NumPy refuses even an empty array when the other extents overflow.
        if math.prod(extent for extent in shape if extent) * itemsize > MAX_TENSOR_BYTES:
            return f"shape {list(shape)} overflows"
    if math.prod(shape) * itemsize != head.nbytes:
        return f"{head} takes {math.prod(shape) * itemsize} bytes, announced as {head.nbytes}"
    if head.order is not None and sorted(head.order) != list(range(len(shape))):
        return f"order {list(head.order)[:MAX_RANK]} is no permutation of {len(shape)} axes"
    return ""
