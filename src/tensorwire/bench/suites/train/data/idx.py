# SPDX-License-Identifier: Apache-2.0
"""MNIST's idx files: a magic number, big-endian dimensions, bytes. Plain or compressed by gzip."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tensorwire.bench.suites.train.data import BrokenFileError

UNSIGNED_BYTE = 8
LARGEST = 1 << 30
"""Bytes of an array; MNIST's images have 47 million."""


def read(path: Path) -> npt.NDArray[np.uint8]:
    """The array in the file. BrokenFileError when it is cut off, too long or no idx file."""
    content = _content(path)
    if len(content) < 4 or content[:2] != b"\0\0":
        raise BrokenFileError(path, "no idx file (its first two bytes are not zero)")
    kind, rank = content[2], content[3]
    if kind != UNSIGNED_BYTE:
        raise BrokenFileError(path, f"elements of type {kind:#x}, not unsigned bytes (0x8)")
    start = 4 + 4 * rank
    if len(content) < start:
        raise BrokenFileError(path, "cut off within its dimensions")
    shape = struct.unpack(f">{rank}I", content[4:start])
    expected = 1
    for size in shape:
        expected *= size
    if len(content) - start != expected:
        raise BrokenFileError(path, f"{len(content) - start} bytes, but {shape} takes {expected}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def write(path: Path, array: npt.NDArray[np.uint8]) -> None:
    """The opposite of ``read``."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, UNSIGNED_BYTE, array.ndim, *array.shape)
    path.write_bytes(header + array.tobytes())


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as stream:
            content = stream.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BrokenFileError(path, f"not readable as gzip ({error})") from None
    if len(content) > LARGEST:
        raise BrokenFileError(path, f"unpacks to more than {LARGEST} bytes")
    return content
