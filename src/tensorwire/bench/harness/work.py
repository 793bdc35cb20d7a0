# SPDX-License-Identifier: Apache-2.0
"""What one figure is about: the case, the size, and what both ends do with the payload."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Work:
    """One thing to measure.

    case: what a call does; each suite has its own.
    size: bytes of payload in a call, or of the tensor.
    payload: what both programs have.
    origin: ``ordinary`` memory, or an array that was ``published`` in the sender's arena.
    reads: whether the receiver adds up everything that it received.
    callers: threads, or workers, that call at the same time, times the calls that each has under
        way.
    """

    case: str
    size: int
    payload: str = "array"
    origin: str = "ordinary"
    reads: bool = False
    callers: int = 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def comparable(self) -> tuple[str, int, str, bool, int]:
        """Equal for works whose receivers do the same: those may be divided by each other."""
        return self.case, self.size, self.payload, self.reads, self.callers


def parse_size(text: str, multiple: int = 8) -> int:
    """Bytes, from ``8``, ``512K``, ``64M`` or ``1G`` (powers of 1024). Raises ValueError, also for
    what is no multiple of the words that are added up."""
    cleaned = text.strip().upper().removesuffix("IB")
    digits = cleaned.rstrip("BKMG")
    unit = cleaned[len(digits) :]
    if len(unit) > 1:
        unit = unit.removesuffix("B")
    if not digits.isascii() or not digits.isdigit() or unit not in _UNITS:
        raise ValueError(f"{text!r} is no size; write 8, 512K, 64M or 1G")
    size = int(digits) * _UNITS[unit]
    if size % multiple:
        raise ValueError(
            f"{text!r} is no multiple of {multiple} bytes (the payload is summed in words)"
        )
    return size


def parse_sizes(text: str, multiple: int = 8) -> list[int]:
    """``parse_size`` of one word; or, of three with colons as ``8:64M:4``, that from the first size
    on up to the second one, each so many times the one before. Raises ValueError."""
    first, *others = text.split(":")
    if not others:
        return [parse_size(first, multiple)]
    if len(others) != 2:
        raise ValueError(f"{text!r} is no range of sizes; write FROM:TO:FACTOR, as 8:64M:4")
    size, last = parse_size(first, multiple), parse_size(others[0], 1)
    factor = others[1].strip()
    if not (factor.isascii() and factor.isdigit() and int(factor) > 1):
        raise ValueError(f"{text!r}: the factor must be a whole number from 2 on, as 8:64M:4 has 4")
    if not 0 < size <= last:
        raise ValueError(f"{text!r}: a range begins above 0 and does not end below its begin")
    found = []
    while size <= last:
        found.append(size)
        size *= int(factor)
    return found


def format_size(size: int) -> str:
    """The shortest of ``8``, ``512K``, ``64M``, ``1G`` that names the size exactly."""
    for unit in ("G", "M", "K"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)


def fill(array: Array) -> Array:
    """Writes the same non-zero pattern into every array of that size; returns ``array``."""
    words = array.view(np.uint32)
    words[:] = np.arange(words.size, dtype=np.uint32)
    words += np.uint32(0x3F800000)
    return array


def payload(size: int) -> Array:
    """``size`` bytes of ordinary float32 memory, every page of it touched."""
    return fill(np.empty(size // 4, np.float32))


def view(buffer: Any) -> Array:
    """A received buffer as float32, without a copy."""
    return np.frombuffer(buffer, np.float32)


def checksum(array: Array) -> int:
    """The sum of all bytes, taken as 64-bit words and wrapped around.

    Integer addition runs at the speed of memory in NumPy (a float32 sum does not) and comes to the
    same result in any order.
    """
    return int(array.view(np.int64).sum())


def answer(array: Array, reads: bool) -> int:
    """What a receiver answers: the checksum when it reads, else how many bytes it was given."""
    return checksum(array) if reads else array.nbytes
