# SPDX-License-Identifier: Apache-2.0
"""How ranks choose one value for good: a machine without any I/O.

Each has a register that it alone writes and that all read. A rank that proposes writes its record,
reads the registers of all others, and does so once more; whoever was overtaken meanwhile begins
again. However slow a rank is, and whenever it stops and goes on, no two ranks ever find different
values chosen. (Gafni and Lamport, Disk Paxos, Distributed Computing 16, 2003, with a single disk.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec


class Value(msgspec.Struct, frozen=True, array_like=True):
    """Who makes up the next group, in the order of its ranks: ranks of the one before, and then
    processes that are new, by their tokens."""

    survivors: tuple[int, ...]
    newcomers: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return len(self.survivors) + len(self.newcomers)


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What a register holds. Ballots of ``size`` ranks are numbers, of which a rank has each
    ``size``-th; 0: none."""

    promised: int = 0
    accepted: int = 0
    value: Value | None = None


class Proposer:
    """One rank's part. Each of ``begin``, ``promise`` and ``accept`` is followed by what it asks
    for: the record is written, and then all registers of others are read anew."""

    def __init__(self, rank: int, size: int, record: Record) -> None:
        """``record``: what its register holds already."""
        self._rank: Final = rank
        self._size: Final = size
        self._record = record
        self._highest = record.promised

    def begin(self) -> Record:
        """The record to be written first, of a ballot above all that were seen."""
        ballot = (self._highest // self._size + 1) * self._size + self._rank
        self._highest = ballot
        self._record = Record(ballot, self._record.accepted, self._record.value)
        return self._record

    def promise(self, others: Iterable[Record], value: Value) -> Record | None:
        """What others' registers held after the first record was written. The record to be
        written then, of ``value`` or of what may have been chosen before; None: overtaken."""
        found = [self._record, *others]
        if self._overtaken(found):
            return None
        latest = max(found, key=lambda each: each.accepted)
        ballot = self._record.promised
        self._record = Record(ballot, ballot, latest.value if latest.accepted else value)
        return self._record

    def accept(self, others: Iterable[Record]) -> Value | None:
        """What others' registers held after the second record was written. The value that is
        chosen; None: overtaken."""
        return None if self._overtaken(others) else self._record.value

    def _overtaken(self, others: Iterable[Record]) -> bool:
        self._highest = max(self._highest, *(each.promised for each in others), 0)
        return self._highest > self._record.promised
