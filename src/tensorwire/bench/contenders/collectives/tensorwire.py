# SPDX-License-Identifier: Apache-2.0
"""Tensorwire's groups, with NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tensorwire import collective
from tensorwire.bench.suites.collectives.contender import Call, Contender, Meeting, Rank
from tensorwire.bench.suites.collectives.operations import Array

PATHS: Final = {"shared memory": "shm"}


class _Rank(Rank):
    def __init__(self, group: collective.Group) -> None:
        self._group = group
        self.path = PATHS.get(group.fabric, group.fabric)

    def barrier(self) -> None:
        self._group.barrier()

    def call(self, case: str, given: Array, taken: Array) -> Call:
        group, size = self._group, self._group.size
        by_rank = taken.reshape(size, -1) if taken.size % size == 0 else taken
        calls: dict[str, Call] = {
            "barrier": group.barrier,
            "all_reduce": lambda: group.all_reduce(given),
            "reduce": lambda: group.reduce(given),
            "broadcast": lambda: group.broadcast(given),
            "all_gather": lambda: group.all_gather(given, out=by_rank),
            "gather": lambda: group.gather(given, out=by_rank if group.rank == 0 else None),
            "reduce_scatter": lambda: group.reduce_scatter(given, out=taken),
            "scatter": lambda: group.scatter(
                taken, given.reshape(size, -1) if group.rank == 0 else None
            ),
            "all_to_all": lambda: group.all_to_all(given, out=taken),
        }
        return calls[case]


class Tensorwire(Contender):
    transports = ("shm",)

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def join(self, meeting: Meeting) -> Iterator[Rank]:
        with collective.join(
            meeting.folder, meeting.rank, meeting.size, timeout=meeting.timeout
        ) as group:
            yield _Rank(group)
