# SPDX-License-Identifier: Apache-2.0
"""Gradients averaged by the all-reduce of a library, in buckets as Horovod and PyTorch make them:
Tensorwire's own choice of algorithm (``hybrid``), Baidu's ring, gloo, and MPI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import ClassVar, Final

import numpy as np

from tensorwire.bench.harness.work import Array
from tensorwire.bench.suites.channels.contender import Channel, Contender, Trainer
from tensorwire.bench.suites.collectives import contender as collectives
from tensorwire.bench.suites.collectives.contender import Meeting

BUCKET_BYTES: Final = 64 << 20


class Buckets:
    """Gradients side by side in few arrays. A gradient is never in two of them, so that a large one
    has one of its own."""

    def __init__(self, elements: Sequence[int]) -> None:
        rows: list[list[int]] = [[]]
        for count in elements:
            if rows[-1] and (sum(rows[-1]) + count) * 4 > BUCKET_BYTES:
                rows.append([])
            rows[-1].append(count)
        self.arrays: list[Array] = [np.zeros(sum(row), np.float32) for row in rows]
        self.gradients: list[Array] = []
        for array, row in zip(self.arrays, rows, strict=True):
            bounds = [0, *np.cumsum(row).tolist()]
            self.gradients += [array[begin:end] for begin, end in pairwise(bounds)]


class _Trainer(Trainer):
    def __init__(
        self, rank: collectives.Rank, path: str, size: int, elements: Sequence[int]
    ) -> None:
        self.path = path
        self.note = rank.note
        self._buckets = Buckets(elements)
        self._calls = [rank.call("all_reduce", each, each) for each in self._buckets.arrays]
        self._share = np.float32(1 / size)

    def gradients(self) -> Sequence[Array]:
        return self._buckets.gradients

    def average(self, gradients: Sequence[Array]) -> Sequence[Array]:
        for call, array in zip(self._calls, self._buckets.arrays, strict=True):
            call()
            np.multiply(array, self._share, out=array)
        return gradients


class AllReduce(Contender):
    """libraries: by transport, the contender of ``tensorwire bench collectives``."""

    libraries: ClassVar[Mapping[str, str]]
    forced: ClassVar[str] = ""

    @property
    def transports(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.libraries)

    @property
    def packages(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._library(self.transports[0]).packages

    def _library(self, transport: str) -> collectives.Contender:
        return collectives.find(self.libraries[transport])

    def viable(self, transport: str) -> str | None:
        return self._library(transport).viable(transport)

    def environment(self, transport: str) -> Mapping[str, str]:
        return {"TENSORWIRE_ALLREDUCE": self.forced} if self.forced else {}

    def launch(self, ranks: Sequence[Sequence[str]]) -> list[list[str]]:
        return self._library(self.transports[0]).launch(ranks)

    @contextmanager
    def join(self, meeting: Meeting, transport: str, elements: Sequence[int]) -> Iterator[Channel]:
        with self._library(transport).join(meeting) as rank:
            # One rank has nobody to exchange with.
            path = rank.path if meeting.size > 1 else transport
            yield _Trainer(rank, path, meeting.size, elements)


class Hybrid(AllReduce):
    role = "own"
    libraries: ClassVar = {"shm": "tensorwire", "tcp": "tensorwire-tcp"}


class Ring(AllReduce):
    role = "own"
    libraries: ClassVar = {"shm": "tensorwire", "tcp": "tensorwire-tcp"}
    forced = "ring"


class Gloo(AllReduce):
    libraries: ClassVar = {"tcp": "gloo"}


class Mpich(AllReduce):
    libraries: ClassVar = {"shm": "mpich"}


class OpenMpi(AllReduce):
    libraries: ClassVar = {"shm": "openmpi"}
