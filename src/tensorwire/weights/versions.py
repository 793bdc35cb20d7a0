# SPDX-License-Identifier: Apache-2.0
"""Versions of a publisher's parameters in memory that is not written any more."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from tensorwire import _core, arrays
from tensorwire.collective.arrays import Array
from tensorwire.log import LOGGER
from tensorwire.tensors import frameworks
from tensorwire.weights.parameters import Parameters, same_bytes
from tensorwire.weights.planning import index_of
from tensorwire.weights.wire import Agreement, Slice

_REPLIES: Final = 16
"""That are kept of one version."""
_ALIGNMENT: Final = 64


def number_of(version: object) -> int:
    """TypeError: it is no version's number."""
    if not isinstance(version, int | np.integer) or isinstance(version, bool):
        raise TypeError(f"a version is a whole number, not {version!r}")
    return int(version)


class Place(NamedTuple):
    """Where a piece lies. pack: bytes, 1-D, of several pieces; they are lent together."""

    pack: Array
    offset: int


class Parts(NamedTuple):
    """What a reader lacks of an agreement: the numbers of its parts, what travels of them, and
    their checksums. places: of each part's rows, which of the arrays and where in it; none where
    each array is a part."""

    numbers: list[int]
    arrays: list[Array]
    places: list[tuple[int, int]]
    checksums: list[int] | None


@dataclass(frozen=True)
class Stored:
    """One version. since: for each piece, the version from which on it has had these bytes. places:
    of those that were copied."""

    number: int
    pieces: Mapping[str, list[Array]]
    since: Mapping[str, list[int]]
    checksums: Mapping[str, list[int]] | None = None
    places: Mapping[str, list[Place]] = field(default_factory=dict)
    _replies: dict[tuple[bytes, int], Parts] = field(default_factory=dict)
    _asked: dict[tuple[bytes, int], None] = field(default_factory=dict)

    def reply(self, agreement: Agreement, have: int) -> Parts:
        """For a reader that has version ``have``. Most readers ask for the same."""
        if len(self._asked) < _REPLIES:
            self._asked[agreement.digest, have] = None
        return self._made(agreement, have)

    def prepare(self, agreements: Mapping[bytes, Agreement], before: Stored) -> None:
        """Makes the replies that readers may want who have asked for the version before, so that
        they do not wait for that; but for those that take a checksum of a part."""
        if self.checksums is not None:
            return
        with suppress(MemoryError):  # whoever asks has it made
            for digest, have in list(before._asked):
                if digest in agreements:
                    self._made(agreements[digest], before.number if have else 0)

    def _made(self, agreement: Agreement, have: int) -> Parts:
        key = (agreement.digest, have)
        known = self._replies.get(key)
        if known is None:
            lacking = [
                (number, part)
                for number, part in enumerate(agreement.parts)
                if self.since[part.name][part.piece] > have
            ]
            known = self._lent(lacking) if agreement.rows else self._sent(lacking)
            if len(self._replies) < _REPLIES:
                self._replies[key] = known
        return known

    def _sent(self, lacking: list[tuple[int, Slice]]) -> Parts:
        found = [self._array(part) for _, part in lacking]
        return Parts([number for number, _ in lacking], found, [], self._sums(lacking))

    def _lent(self, lacking: list[tuple[int, Slice]]) -> Parts:
        """Of each pack, the run from the first to the last byte that is wanted."""
        runs: dict[int, tuple[Array, int, int]] = {}
        begins = []
        for _, part in lacking:
            pack, at = self.places[part.name][part.piece]
            row = math.prod(self.pieces[part.name][part.piece].shape[1:])
            row *= self.pieces[part.name][part.piece].itemsize
            begin = at + (part.start[0] * row if part.start else 0)
            end = begin + (part.shape[0] * row if part.shape else row)
            _, low, high = runs.get(id(pack), (pack, begin, end))
            runs[id(pack)] = pack, min(low, begin), max(high, end)
            begins.append((id(pack), begin))
        order = {pack: number for number, pack in enumerate(runs)}
        places = [(order[pack], begin - runs[pack][1]) for pack, begin in begins]
        lent = [pack[low:high] for pack, low, high in runs.values()]
        return Parts([number for number, _ in lacking], lent, places, self._sums(lacking))

    def _array(self, part: Slice) -> Array:
        array: Array = self.pieces[part.name][part.piece][index_of(part.start, part.shape)]
        return array

    def _sums(self, lacking: list[tuple[int, Slice]]) -> list[int] | None:
        if self.checksums is None:
            return None
        sums = []
        for _, part in lacking:
            whole = part.shape == self.pieces[part.name][part.piece].shape
            known = self.checksums[part.name][part.piece]
            sums.append(known if whole else crc(self._array(part)))
        return sums


@dataclass
class Store:
    """Makes versions of parameters in the arena. What has not changed is shared with the version
    before. A pack is freed with the last version, message or lease that has a piece of it; less
    than half a pack is not kept for the pieces that have not changed: these are copied, too. So the
    packs of a version are never more than twice its size. pack_bytes: of a pack, unless a single
    piece is larger."""

    quota: _core.Quota
    pack_bytes: int = 64 << 20
    outside: int = field(default=0, init=False)
    """Versions that lie, with some of their bytes, outside of the arena, because it had no room."""
    _told: bool = field(default=False, init=False)

    def copy(
        self, parameters: Parameters[object], number: int, before: Stored | None, checksum: bool
    ) -> Stored:
        pieces = {name: parameter.pieces for name, parameter in parameters}
        since = {name: [number] * len(every) for name, every in pieces.items()}
        places: dict[str, list[Place]] = {
            name: [Place(_NOTHING, 0)] * len(every) for name, every in pieces.items()
        }
        kept: dict[int, list[tuple[str, int]]] = {}
        live: dict[int, int] = {}
        wanted: list[tuple[str, int]] = []
        for name, every in pieces.items():
            for index, piece in enumerate(every):
                if before is None or not same_bytes(before.pieces[name][index], piece):
                    wanted.append((name, index))
                    continue
                place = before.places[name][index]
                since[name][index] = before.since[name][index]
                every[index], places[name][index] = before.pieces[name][index], place
                kept.setdefault(id(place.pack), []).append((name, index))
                live[id(place.pack)] = live.get(id(place.pack), 0) + _aligned(piece.nbytes)
        for pack, those in kept.items():
            name, index = those[0]
            if 2 * live[pack] < places[name][index].pack.nbytes:
                wanted += those
        self.outside += not self._pack(wanted, pieces, places)
        return Stored(number, pieces, since, checksums(pieces) if checksum else None, places)

    def _pack(
        self,
        wanted: list[tuple[str, int]],
        pieces: dict[str, list[Array]],
        places: dict[str, list[Place]],
    ) -> bool:
        """Whether all of it lies in the arena."""
        inside = True
        at = 0
        while at < len(wanted):
            begun, nbytes = at, 0
            offsets: list[int] = []
            while at < len(wanted):
                name, index = wanted[at]
                end = nbytes + pieces[name][index].nbytes
                if offsets and end > self.pack_bytes:
                    break
                offsets.append(nbytes)
                nbytes = _aligned(end)
                at += 1
            pack = self._room(nbytes)
            if pack is None:
                inside, pack = False, np.empty(nbytes, np.uint8)
            pairs: list[tuple[Array, Array]] = []
            for (name, index), offset in zip(wanted[begun:at], offsets, strict=True):
                piece = pieces[name][index]
                copy = pack[offset : offset + piece.nbytes].view(piece.dtype).reshape(piece.shape)
                pairs.append((copy, piece))
                pieces[name][index], places[name][index] = copy, Place(pack, offset)
            arrays.copy_all(pairs)
            for name, index in wanted[begun:at]:
                pieces[name][index].flags.writeable = False
            if pack.nbytes:
                _core.publish(frameworks.raw(pack))
            pack.flags.writeable = False
        return inside

    def _room(self, nbytes: int) -> Array | None:
        """None: the arena has none."""
        try:
            return arrays.empty_within(self.quota, nbytes)
        except arrays.ArenaFullError as error:
            if not self._told:
                LOGGER.warning(
                    "a version of weights lies outside of the arena, and will be copied "
                    "for each reader: %s",
                    error,
                )
                self._told = True
            return None


def _aligned(nbytes: int) -> int:
    return nbytes + -nbytes % _ALIGNMENT


_NOTHING: Final[Array] = np.empty(0, np.uint8)


def checksums(pieces: Mapping[str, list[Array]]) -> Mapping[str, list[int]]:
    return {name: [crc(each) for each in every] for name, every in pieces.items()}


def crc(piece: Array) -> int:
    return zlib.crc32(frameworks.raw(piece if piece.flags.c_contiguous else piece.copy()))
