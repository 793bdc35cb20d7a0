# SPDX-License-Identifier: Apache-2.0
"""Versions of a publisher's parameters in memory that is not written any more."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tensorwire import _core, arrays
from tensorwire.collective.arrays import Array
from tensorwire.log import LOGGER
from tensorwire.tensors import frameworks
from tensorwire.weights.parameters import Parameters, same_bytes


@dataclass(frozen=True)
class Stored:
    """One version. ``since``: for each piece, the version from which on it has had these bytes."""

    number: int
    pieces: Mapping[str, list[Array]]
    since: Mapping[str, list[int]]
    checksums: Mapping[str, list[int]] | None = None

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for pieces in self.pieces.values() for piece in pieces)


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
