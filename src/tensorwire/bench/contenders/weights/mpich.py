# SPDX-License-Identifier: Apache-2.0
"""MPICH, through mpi4py: a broadcast of each tensor. Its ranks spin while they wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tensorwire.bench.contenders.collectives import mpich
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives import contender as collectives
from tensorwire.bench.suites.collectives.contender import Meeting
from tensorwire.bench.suites.weights.contender import Contender, Params, Rank, Weights


class _Broadcast(Weights):
    def __init__(self, group: collectives.Rank, params: Params) -> None:
        self._params = params
        self._calls = [group.call("broadcast", each, each) for each in params.values()]

    def prepare(self, number: int) -> None:
        return

    def move(self, number: int) -> None:
        for call in self._calls:
            call()

    def held(self) -> Params:
        return self._params


class _Rank(Rank):
    def __init__(self, group: collectives.Rank) -> None:
        self._group = group
        self.path, self.note = group.path, group.note

    def barrier(self) -> None:
        self._group.barrier()

    def open(self, work: Work, params: Params) -> Weights:
        return _Broadcast(self._group, params)


class Mpich(Contender):
    transports = ("shm",)
    packages = ("mpi4py",)
    _library = mpich.Mpich()

    def viable(self, transport: str) -> str | None:
        return self._library.viable(transport)

    def launch(self, ranks: Sequence[Sequence[str]]) -> list[list[str]]:
        return self._library.launch(ranks)

    @contextmanager
    def join(self, meeting: Meeting) -> Iterator[Rank]:
        with self._library.join(meeting) as group:
            yield _Rank(group)
