# SPDX-License-Identifier: Apache-2.0
"""Versions of a publisher's parameters in memory that is not written any more."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tensorwire import _core, arrays
from tensorwire.collective.arrays import Array
from tensorwire.log import LOGGER
from tensorwire.tensors import frameworks
from tensorwire.weights.parameters import Parameters, same_bytes
from tensorwire.weights.planning import index_of
from tensorwire.weights.wire import Agreement

Parts = tuple[list[int], list[Array], list[int] | None]

_REPLIES: Final = 16
"""That are kept of one version."""


@dataclass(frozen=True)
class Stored:
    """One version. ``since``: for each piece, the version from which on it has had these bytes."""

    number: int
    pieces: Mapping[str, list[Array]]
    since: Mapping[str, list[int]]
    checksums: Mapping[str, list[int]] | None = None
    _replies: dict[tuple[bytes, int], Parts] = field(default_factory=dict)

    def reply(self, agreement: Agreement, have: int) -> Parts:
        """What of an agreement a reader lacks that has version ``have``: which parts, their memory,
        and their checksums. Most readers ask for the same."""
        key = (agreement.digest, have)
        known = self._replies.get(key)
        if known is None:
            known = self._parts(agreement, have)
            if len(self._replies) < _REPLIES:
                self._replies[key] = known
        return known

    def _parts(self, agreement: Agreement, have: int) -> Parts:
        parts: list[int] = []
        arrays: list[Array] = []
        sums: list[int] | None = None if self.checksums is None else []
        for number, part in enumerate(agreement.parts):
            if self.since[part.name][part.piece] <= have:
                continue
            whole = self.pieces[part.name][part.piece]
            array = whole[index_of(part.start, part.shape)]
            rows = whole[index_of(part.start[:1], part.shape[:1])]
            parts.append(number)
            arrays.append(rows if agreement.rows else array)
            if sums is not None and self.checksums is not None:
                known = self.checksums[part.name][part.piece]
                sums.append(known if array.shape == whole.shape else crc(array))
        return parts, arrays, sums


@dataclass
class Store:
    """Makes versions of parameters in the arena. What has not changed is shared with the version
    before; a piece is freed with the last version, message or lease that has it."""

    quota: _core.Quota
    _told: bool = field(default=False, init=False)

    def copy(
        self, parameters: Parameters[object], number: int, before: Stored | None, checksum: bool
    ) -> Stored:
        pieces: dict[str, list[Array]] = {}
        since: dict[str, list[int]] = {}
        for name, parameter in parameters:
            pieces[name], since[name] = [], []
            for index, piece in enumerate(parameter.pieces):
                old = None if before is None else before.pieces[name][index]
                if old is not None and before is not None and same_bytes(old, piece):
                    pieces[name].append(old)
                    since[name].append(before.since[name][index])
                else:
                    pieces[name].append(self._copied(piece))
                    since[name].append(number)
        return Stored(number, pieces, since, checksums(pieces) if checksum else None)

    def _copied(self, piece: Array) -> Array:
        try:
            return arrays.copied_within(self.quota, piece)
        except arrays.ArenaFullError as error:
            if not self._told:
                LOGGER.warning(
                    "a version of weights lies outside of the arena, and will be copied "
                    "for each reader: %s",
                    error,
                )
                self._told = True
        copy = np.array(piece, order="C")
        copy.flags.writeable = False
        return copy


def checksums(pieces: Mapping[str, list[Array]]) -> Mapping[str, list[int]]:
    return {name: [crc(each) for each in every] for name, every in pieces.items()}


def crc(piece: Array) -> int:
    return zlib.crc32(frameworks.raw(piece if piece.flags.c_contiguous else piece.copy()))
