# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with gloo: a broadcast of each tensor, all of them under way at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorwire.bench.contenders.collectives import gloo
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives import contender as collectives
from tensorwire.bench.suites.collectives.contender import Meeting
from tensorwire.bench.suites.collectives.torch_ranks import joined
from tensorwire.bench.suites.weights.contender import TRAINER, Contender, Params, Rank, Weights


class _Broadcast(Weights):
    def __init__(self, params: Params) -> None:
        import torch

        self._params = params
        self._tensors = [torch.from_numpy(param) for param in params.values()]

    def prepare(self, number: int) -> None:
        return

    def move(self, number: int) -> None:
        import torch.distributed as dist

        begun: list[Any] = [dist.broadcast(each, TRAINER, async_op=True) for each in self._tensors]
        for work in begun:
            work.wait()

    def held(self) -> Params:
        return self._params


class _Rank(Rank):
    path = "tcp"

    def __init__(self, group: collectives.Rank) -> None:
        self._group = group

    def barrier(self) -> None:
        self._group.barrier()

    def open(self, work: Work, params: Params) -> Weights:
        return _Broadcast(params)


class Gloo(Contender):
    transports = ("tcp",)
    packages = ("torch",)

    def viable(self, transport: str) -> str | None:
        return gloo.Gloo().viable(transport)

    @contextmanager
    def join(self, meeting: Meeting) -> Iterator[Rank]:
        with joined(meeting, "gloo", "tcp") as group:
            yield _Rank(group)
