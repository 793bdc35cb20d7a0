# SPDX-License-Identifier: Apache-2.0
"""Tensorwire's groups, with NumPy arrays; and the same by each of the ways that there are, whatever
the size, which is what ``tensorwire tune collectives`` measures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from tensorwire import collective
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.contender import (
    Call,
    Contender,
    Meeting,
    Messages,
    Rank,
    exchange,
)
from tensorwire.bench.suites.collectives.operations import (
    DTYPES,
    OPERATIONS,
    Array,
    exchanged,
    parts,
    portions,
)
from tensorwire.bench.suites.collectives.ways import (
    FABRICS,
    FOREVER,
    UNTUNED,
    WAYS,
    at_most,
    moved,
    rule,
)

PATHS: Final = {"shared memory": "shm"}
MESSAGES: Final = "messages"
"""The fabric of a group in which ranks share no memory."""


class _Rank(Rank):
    def __init__(self, group: collective.Group, path: str) -> None:
        self._group = group
        self.path = path
        self._made: list[Array] = []
        self._taken: list[Array] = []

    def barrier(self) -> None:
        self._group.barrier()

    def call(self, case: str, given: Array, taken: Array) -> Call:
        group, size = self._group, self._group.size
        if OPERATIONS[case].paired:
            by = Messages(
                group.send,
                group.receive,
                lambda array, peer: group.send(array, peer, async_op=True).wait,
                lambda array, peer: group.receive(array, peer, async_op=True).wait,
            )
            return exchange(by, case, group.rank, given, taken)
        self._taken = []
        if OPERATIONS[case].uneven:
            return self._uneven(case, given, taken)
        if OPERATIONS[case].coalesced:
            return self._coalesced(case, given, taken)
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

    def _uneven(self, case: str, given: Array, taken: Array) -> Call:
        group, count = self._group, max(given.size, taken.size)
        rows = portions(count, group.size)
        each = exchanged(count, group.rank, group.size)
        calls: dict[str, Call] = {
            "all_gather_v": lambda: group.all_gather(given, rows=rows, out=taken),
            "reduce_scatter_v": lambda: group.reduce_scatter(given, rows=rows, out=taken),
            "all_to_all_v": lambda: group.all_to_all(given, each, each, out=taken),
        }
        return calls[case]

    def _coalesced(self, case: str, given: Array, taken: Array) -> Call:
        group, gives = self._group, parts(given)
        if case == "all_reduce_many":
            return lambda: group.all_reduce_many(gives)
        if case == "broadcast_many":
            return lambda: group.broadcast_many(gives)
        many = group.all_gather_many if case == "all_gather_many" else self._scatter_many
        self._taken = parts(taken)
        made = self._made

        def run() -> None:
            made.clear()  # as a program that takes new arrays in each step lets go of the old ones
            made.extend(many(gives))

        return run

    def _scatter_many(self, arrays: list[Array]) -> list[Array]:
        return self._group.reduce_scatter_many(arrays)

    def fetch(self) -> None:
        """Arrays that the last call has made."""
        for array, to in zip(self._made, self._taken, strict=True):
            to[:] = array.reshape(-1)

    def ways(self, case: str) -> Mapping[str, int]:
        counted = self._group.statistics().get(OPERATIONS[case].plain, {})
        return {way: each["operations"] for way, each in counted.items()}


class Tensorwire(Contender):
    role = "own"
    transports = ("shm",)
    dtypes = frozenset(DTYPES)

    def viable(self, transport: str) -> str | None:
        return None

    def variants(self) -> Mapping[str, Tensorwire]:
        """``tensorwire-tcp``, and of each transport ``tensorwire-TRANSPORT-WAY``; without a table
        ``tensorwire-TRANSPORT-untuned``."""
        found: dict[str, Tensorwire] = {"tensorwire-tcp": _Over("tcp", "")}
        for transport, fabric in FABRICS.items():
            for way in (UNTUNED, *WAYS[fabric]):
                found[f"tensorwire-{transport}-{way}"] = _Over(transport, way)
        return found

    @contextmanager
    def join(self, meeting: Meeting) -> Iterator[Rank]:
        with collective.join(
            meeting.folder, meeting.rank, meeting.size, timeout=meeting.timeout
        ) as group:
            yield _Rank(group, self._path(group))

    def _path(self, group: collective.Group) -> str:
        return PATHS.get(group.fabric, group.fabric)


class _Over(Tensorwire):
    """Over one transport. way: by which all operations go that can; empty: as they do."""

    def __init__(self, transport: str, way: str) -> None:
        self.transports = (transport,)
        self._transport = transport
        self._way = way
        if way not in ("", UNTUNED):
            self.cases = frozenset(WAYS[FABRICS[transport]][way])

    def variants(self) -> Mapping[str, _Over]:
        return {}

    def supports(self, work: Work, dtype: str, device: str = "cpu") -> bool:
        # Shares are largest between two ranks: what does not fit there may fit between more.
        most = at_most(self._way)
        return super().supports(work, dtype, device) and (most is None or moved(work, 2) <= most)

    @contextmanager
    def join(self, meeting: Meeting) -> Iterator[Rank]:
        os.environ["TENSORWIRE_TRANSPORT"] = self._transport
        if self._way:
            os.environ["TENSORWIRE_TUNING"] = self._table(meeting)
        with super().join(meeting) as rank:
            yield rank

    def _table(self, meeting: Meeting) -> str:
        if self._way == UNTUNED:
            return "off"
        fabric = FABRICS[self._transport]
        path = f"{meeting.folder}-{meeting.rank}.table"
        with open(path, "w") as table:
            for case in WAYS[fabric][self._way]:
                table.write(rule(case, fabric, meeting.size, FOREVER, self._way))
        return path

    def _path(self, group: collective.Group) -> str:
        found = super()._path(group)
        return self._transport if found == MESSAGES else found
