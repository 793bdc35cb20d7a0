# SPDX-License-Identifier: Apache-2.0
"""The limit that memory sets: each receiver copies parameters that it has itself, at the same
time, and receives nothing. The first version goes to memory that nobody has used, as in any process
that has just begun."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tensorwire import collective
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.contender import Meeting
from tensorwire.bench.suites.weights.contender import (
    COPIED,
    RESHARDED,
    TRAINER,
    Contender,
    Params,
    Rank,
    Weights,
)


class _Copy(Weights):
    def __init__(self, params: Params, *, receives: bool) -> None:
        self._held = params
        # Of a value of its own: pages of zeros would all be the same one.
        self._sources = (
            {name: np.full_like(param, 7) for name, param in params.items()} if receives else {}
        )
        self._moved = False

    def prepare(self, number: int) -> None:
        return

    def move(self, number: int) -> None:
        if self._sources and not self._moved:
            self._held = {name: np.empty_like(source) for name, source in self._sources.items()}
        self._moved = True
        for name, source in self._sources.items():
            np.copyto(self._held[name], source)

    def held(self) -> Params:
        return self._held


class _Rank(Rank):
    path = "memory"
    receives = False

    def __init__(self, group: collective.Group) -> None:
        self._group = group

    def barrier(self) -> None:
        self._group.barrier()

    def open(self, work: Work, params: Params) -> Weights:
        return _Copy(params, receives=self._group.rank != TRAINER)


class Memcpy(Contender):
    role = "limit"
    transports = ("memory",)
    cases = frozenset({COPIED, RESHARDED})

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def join(self, meeting: Meeting) -> Iterator[Rank]:
        with collective.join(
            meeting.folder, meeting.rank, meeting.size, timeout=meeting.timeout
        ) as group:
            yield _Rank(group)
