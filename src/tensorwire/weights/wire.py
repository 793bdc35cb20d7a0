# SPDX-License-Identifier: Apache-2.0
"""What publishers and subscribers tell each other beside tensors: msgpack of typed structs, as the
bytes of a segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from tensorwire import service
from tensorwire.malformed import MALFORMED
from tensorwire.tensors import MAX_TENSORS
from tensorwire.tensors.errors import DecodeError
from tensorwire.weights.planning import Index, Part, Shard, digest

T = TypeVar("T")

MAX_BYTES: Final = 64 << 20
"""Of one of these messages: what is longer is refused before anything is decoded."""
MAX_PARTS: Final = MAX_TENSORS
"""That one pull asks a publisher for."""


class Description(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a publisher holds. instance: of this publisher, in no other life of its process."""

    instance: bytes
    in_place: bool
    layout: dict[str, list[Shard]]


class Slice(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A box of one of the publisher's pieces, relative to it."""

    name: str
    piece: int
    start: Index
    shape: Index


class Agreement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a subscriber will ask for, again and again. rows: the memory of a slice's rows is lent,
    and the subscriber takes from it what is its own; else the slice alone travels."""

    instance: bytes
    layout: bytes
    parts: list[Slice]
    rows: bool
    digest: bytes

    @classmethod
    def of(cls, described: Description, parts: Sequence[Part], rows: bool) -> Agreement:
        slices = [Slice(part.name, part.piece, part.start, part.shape) for part in parts]
        content = (described.instance, digest(described.layout), slices, rows)
        return cls(*content, digest(content))

    def holds(self) -> bool:
        """Whether both ends mean the same."""
        return self.digest == digest((self.instance, self.layout, self.parts, self.rows))


class Pull(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """plan: the digest of an agreement. Wanted is a version from ``at_least`` on, or ``exactly``
    that one (0: any). have: what of this publisher the subscriber holds; 0: nothing. ticket: of an
    earlier reply, of which this is to be the rest; 0: there was none. more: the subscriber will ask
    for more of the version, which is kept until then."""

    plan: bytes
    at_least: int
    exactly: int
    have: int
    ticket: int
    more: bool


class Pulled(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """version: 0, where none that was asked for is there; then nothing else travels. newest: what
    is. ticket: by which the subscriber asks whether what came is of one moment. parts: which of the
    agreement's came, in their order. places: of each, in which of the arrays that follow its rows
    lie, and from which byte on; none where each array is a part. checksums: CRC-32 of each part, if
    the version has them."""

    version: int
    newest: int
    ticket: int
    parts: list[int]
    places: list[tuple[int, int]]
    checksums: list[int] | None


class State(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """newest: 0 while nothing is published, or it is being written in place."""

    instance: bytes
    newest: int


class Calls:
    """The service of a publisher. Requests and replies are those above, and arrays."""

    def describe(self) -> Any:
        raise NotImplementedError

    def agree(self, agreement: Any) -> None:
        raise NotImplementedError

    def state(self) -> Any:
        raise NotImplementedError

    def pull(self, request: Any) -> tuple[Any, list[Any]]:
        """Of a publisher that copies: what travels is not written any more."""
        raise NotImplementedError

    def look(self, request: Any) -> Any:
        """What ``pull`` would reply, without the arrays."""
        raise NotImplementedError

    def read(self, request: Any) -> Iterator[tuple[Any, list[Any]]]:
        """In place: one reply, and the end of the call once that has left the parameters."""
        raise NotImplementedError

    def intact(self, ticket: int) -> bool:
        """Whether what was read with this ticket is of one moment."""
        raise NotImplementedError


def named(name: str, calls: type[Calls] = Calls) -> type[Calls]:
    """The service of the publication of that name."""
    return service.define(name=f"tensorwire.weights.{name}")(type("Weights", (calls,), {}))


# Made by the import: threads that make the first one of a type at once crash in msgspec.
_decoders: Final[dict[type[Any], Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Description, Agreement, Pull, Pulled, State)
}


def encode(message: msgspec.Struct) -> np.ndarray[Any, Any]:
    return np.frombuffer(msgspec.msgpack.encode(message), np.uint8)


def decode(data: Any, kind: type[T]) -> T:
    """``DecodeError``: no such message."""
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 1:
        raise DecodeError(f"a message of weights is an array of bytes, not a {type(data).__name__}")
    if data.nbytes > MAX_BYTES:
        raise DecodeError(f"a message of {data.nbytes} bytes: at most {MAX_BYTES} are read")
    try:
        message: T = _decoders[kind].decode(data.data)
        return message
    except MALFORMED as error:
        raise DecodeError(f"a malformed {kind.__name__}: {error}") from None
