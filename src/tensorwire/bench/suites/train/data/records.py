# SPDX-License-Identifier: Apache-2.0
"""TFRecord files: their framing is checked here before TensorFlow trains for hours on them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from tensorwire.bench.suites.train.data import BrokenFileError

HEADER = struct.Struct("<QI")
"""Length of the record's data, and a masked CRC-32C of the length."""
FOOTER = 4
_POLYNOMIAL = 0x82F63B78


def lengths(path: Path) -> Iterator[int]:
    """The bytes of each record. BrokenFileError where one is damaged or cut off."""
    left = os.stat(path).st_size
    with path.open("rb") as stream:
        while left:
            header = stream.read(HEADER.size)
            if len(header) < HEADER.size:
                raise BrokenFileError(path, f"cut off {left} bytes into the header of a record")
            length, check = HEADER.unpack(header)
            if check != masked_crc(header[:8]):
                raise BrokenFileError(path, f"damaged {left} bytes before its end, or no TFRecord")
            left -= HEADER.size + length + FOOTER
            if left < 0:
                raise BrokenFileError(path, f"cut off: the last record lacks {-left} bytes")
            stream.seek(length + FOOTER, os.SEEK_CUR)
            yield length


def check(paths: list[Path]) -> int:
    """How many records the files hold together. BrokenFileError when one is bad."""
    total = 0
    for path in paths:
        count = sum(1 for _ in lengths(path))
        if not count:
            raise BrokenFileError(path, "empty")
        total += count
    return total


def masked_crc(content: bytes) -> int:
    """CRC-32C, rotated and offset as the format has it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()
