# SPDX-License-Identifier: Apache-2.0
"""Protobuf's format, as far as it takes to cut fields out: the one place that reads what a peer
chose.

A message is taken apart into a skeleton, which is the same message with empty bytes in the places
of what was taken out, and views of that. Nothing is judged here: what is malformed, unusual or too
much to look at is left to protobuf as a whole, so that nobody reads the same bytes differently.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from tensorwire.protobuf.fields import Path, Plan

LARGE: Final = 64 << 10
"""Bytes from which an attached buffer travels in a segment of its own, and from which fields come
as views where none are named."""

MAX_MESSAGE_BYTES: Final = (1 << 31) - 1
"""The limit of every implementation of protobuf."""
MAX_FIELDS: Final = 4096
"""Looked at in one message: protobuf is faster where there are many."""
MAX_DEPTH: Final = 100
MAX_NUMBER: Final = (1 << 29) - 1

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAP_KEY, MAP_VALUE = 1, 2
_LONGEST_VARINT: Final = 10

Piece = bytes | memoryview


class Found:
    """What was taken out of a message."""

    def __init__(self) -> None:
        self.views: dict[Path, memoryview] = {}
        self.entries: dict[Path, int] = {}
        """How many entries came of each map that something was taken out of."""


class _UnusualError(Exception):
    """Left to protobuf."""


def varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def take_apart(
    segments: Sequence[memoryview], plan: Plan, least: int
) -> tuple[bytes, Found] | None:
    """The skeleton of a message, and views of the fields in ``plan`` that have ``least`` bytes.

    segments: the message's bytes as flat views, cut anywhere. None when nothing is taken out.
    """
    if not 0 < least <= sum(map(len, segments)) <= MAX_MESSAGE_BYTES:
        return None
    try:
        skeleton, found = _Reader(segments, least).take_apart(plan)
    except _UnusualError:
        return None
    return (skeleton, found) if found.views else None


def key_of(entry: bytes) -> bytes:
    """Without the value, which protobuf adds to each entry in Python and not in C."""
    return _Reader([memoryview(entry)], 0).only(MAP_KEY, 0, len(entry)) if entry else b""


class _Reader:
    """Positions count from the first byte of the message."""

    def __init__(self, segments: Sequence[memoryview], least: int) -> None:
        self._segments = [segment for segment in segments if len(segment)]
        self._starts: list[int] = []
        self._size = 0
        for segment in self._segments:
            self._starts.append(self._size)
            self._size += len(segment)
        self._least = least
        self._fields_left = MAX_FIELDS
        self._found = Found()
        # The segment that is being read, and where it begins and ends.
        self._segment = self._segments[0]
        self._begin = 0
        self._end = len(self._segment)

    def take_apart(self, plan: Plan) -> tuple[bytes, Found]:
        return b"".join(self._message(0, self._size, plan, (), MAX_DEPTH)), self._found

    def _message(self, at: int, end: int, plan: Plan, path: Path, depth: int) -> list[Piece]:
        """The skeleton of the message that lies there."""
        if not depth:
            raise _UnusualError
        views = self._found.views
        pieces: list[Piece] = []
        copied = at  # what lies before is in ``pieces``
        counts: dict[int, int] = {}
        maps: dict[int, Path] = {}
        while at < end:
            number, tag_end, body, at = self._field(at, end)
            field = plan.get(number) if body else None
            if field is None:
                continue
            index = counts.get(number, 0)
            counts[number] = index + 1
            if index and not field.repeated:
                raise _UnusualError  # protobuf takes the last one, or merges them
            if at - body < self._least:
                continue
            where = (*path, *field.step)
            if field.entry is not None:
                where = (*where, self._key(body, at, field.entry))
            elif field.repeated:
                where = (*where, index)
            inner: list[Piece] = []
            if field.plan is None:
                views[where] = self._view(body, at)
            else:
                before = len(views)
                inner = self._message(body, at, field.plan, where, depth - 1)
                if len(views) == before:
                    continue
                if field.entry is not None:
                    maps[number] = where[:-1]
            pieces += self._pieces(copied, tag_end)
            pieces.append(varint(sum(map(len, inner))))
            pieces += inner
            copied = at
        for number, where in maps.items():
            self._found.entries[where] = counts[number]
        pieces += self._pieces(copied, end)
        return pieces

    def _key(self, at: int, end: int, entry: Any) -> Any:
        """The key of a map's entry."""
        try:
            return entry.FromString(self.only(MAP_KEY, at, end)).key
        except (DecodeError, ValueError):
            raise _UnusualError from None

    def only(self, wanted: int, at: int, end: int) -> bytes:
        """The fields with that number."""
        fields: list[memoryview] = []
        while at < end:
            start = at
            number, _, _, at = self._field(at, end)
            if number == wanted:
                fields += self._pieces(start, at)
        return b"".join(fields)

    def _field(self, at: int, end: int) -> tuple[int, int, int, int]:
        """Its number, where its tag ends, where its bytes begin (0 if it is a number), its end."""
        self._fields_left -= 1
        if self._fields_left < 0:
            raise _UnusualError
        tag, at = self._varint(at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number <= MAX_NUMBER:
            raise _UnusualError
        tag_end, body = at, 0
        if kind == BYTES:
            length, body = self._varint(at)
            at = body + length
        elif kind == VARINT:
            at = self._number_end(at)
        elif kind in (FIXED64, FIXED32):
            at += 8 if kind == FIXED64 else 4
        else:
            raise _UnusualError  # groups
        if at > end:
            raise _UnusualError
        return number, tag_end, body, at

    def _varint(self, at: int) -> tuple[int, int]:
        """A tag or a length, and where it ends. As long as it has to be, which leaves out what
        implementations differ in."""
        if self._begin <= at < self._end and (byte := self._segment[at - self._begin]) < 0x80:
            return byte, at + 1  # most are short
        value = shift = 0
        while True:
            byte = self._byte(at)
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise _UnusualError
        if (shift and not byte) or value > 0xFFFFFFFF:
            raise _UnusualError
        return value, at

    def _number_end(self, at: int) -> int:
        for after in range(at + 1, at + 1 + _LONGEST_VARINT):
            if self._byte(after - 1) < 0x80:
                return after
        raise _UnusualError

    def _byte(self, at: int) -> int:
        if not self._begin <= at < self._end:
            if at >= self._size:
                raise _UnusualError
            index = bisect_right(self._starts, at) - 1
            self._segment = self._segments[index]
            self._begin = self._starts[index]
            self._end = self._begin + len(self._segment)
        return self._segment[at - self._begin]

    def _pieces(self, at: int, end: int) -> list[memoryview]:
        """What lies there, in as many pieces as there are segments."""
        pieces = []
        index = bisect_right(self._starts, at) - 1
        while at < end:
            start, segment = self._starts[index], self._segments[index]
            piece = segment[at - start : end - start]
            pieces.append(piece)
            at += len(piece)
            index += 1
        return pieces

    def _view(self, at: int, end: int) -> memoryview:
        pieces = self._pieces(at, end)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
