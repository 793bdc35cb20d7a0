# SPDX-License-Identifier: Apache-2.0
"""The limit that memory sets: all ranks add one array of that size to another one in place, where
the operation is a reduction, else copy it, at the same time, and exchange nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tensorwire.bench.suites.collectives.contender import Call, Contender, Meeting, Rank
from tensorwire.bench.suites.collectives.operations import OPERATIONS, Array


class _Rank(Rank):
    path = "memory"
    exchanges = False

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def barrier(self) -> None:
        return

    def call(self, case: str, given: Array, taken: Array) -> Call:
        operation = OPERATIONS[case]
        count = max(given.size, taken.size)
        if operation.rooted and not operation.in_place:  # the root alone has all of it
            count = max(
                given.size * (self._ranks if operation.gives_share else 1),
                taken.size * (self._ranks if operation.takes_share else 1),
            )
        target, source = np.ones(count, given.dtype), np.zeros(count, given.dtype)
        source.fill(0)
        if operation.reduces:
            return lambda: np.add(target, source, out=target)
        return lambda: np.copyto(target, source)


class Memory(Contender):
    role = "limit"
    transports = ("memory",)
    cases = frozenset(name for name, each in OPERATIONS.items() if each.in_place or each.shares)

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def join(self, meeting: Meeting) -> Iterator[Rank]:
        yield _Rank(meeting.size)
