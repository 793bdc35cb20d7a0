# SPDX-License-Identifier: Apache-2.0
"""Tensorwire's publisher and subscribers, with its default settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

import tensorwire
from tensorwire import collective, weights
from tensorwire.bench.harness.measure import WrongAnswerError
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.contender import Meeting
from tensorwire.bench.suites.weights.contender import (
    ADOPTED,
    CASES,
    COPIED,
    PUBLISHED,
    RESHARDED,
    Contender,
    Params,
    Rank,
    Weights,
)
from tensorwire.bench.suites.weights.shards import Holding, held, intersections
from tensorwire.tensors.frameworks import Framework


class _Publisher(Weights):
    def __init__(
        self, params: Params, holding: Holding, transport: Any, port: str, *, timed: bool
    ) -> None:
        self._server = tensorwire.server(ThreadPoolExecutor(4), transport=transport)
        self._publisher = weights.Publisher(params, self._server, shards=holding)
        bound = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        with open(port, "w") as file:
            file.write(str(bound))
        self._timed = timed
        self._params = params

    def prepare(self, number: int) -> None:
        if not self._timed:
            self._publisher.publish(number)

    def move(self, number: int) -> None:
        if self._timed:
            self._publisher.publish(number)

    def held(self) -> Params:
        return self._params

    def close(self) -> None:
        self._publisher.close()
        self._server.stop(None)


class _Subscriber(Weights):
    def __init__(
        self,
        params: Params,
        holding: Holding,
        sources: Sequence[Holding],
        transport: Any,
        ports: Sequence[str],
        way: Tensorwire,
        *,
        adopts: bool,
    ) -> None:
        self._channels = []
        options = [("grpc.max_receive_message_length", -1)]
        for port in ports:
            with open(port) as file:
                target = f"127.0.0.1:{file.read()}"
            self._channels.append(tensorwire.insecure_channel(target, options, transport=transport))
        self._subscriber = weights.Subscriber(self._channels, params, mode=way.mode, shards=holding)
        self._framework = way.framework
        self._common = intersections(sources, holding)
        self._adopts = adopts
        self._view = ExitStack()
        self._held: Mapping[str, Any] = params

    def prepare(self, number: int) -> None:
        if self._adopts:
            self._held = {}
            self._view.close()

    def move(self, number: int) -> None:
        if self._adopts:
            view = self._subscriber.view(at_least=number, framework=self._framework)
            self._held = self._view.enter_context(view)
        elif (moved := self._subscriber.pull(at_least=number).nbytes) != self._common:
            raise WrongAnswerError(f"{moved} bytes moved, and {self._common} are in common")

    def held(self) -> Params:
        if self._framework == "numpy":
            return self._held
        return {name: np.asarray(tensor) for name, tensor in self._held.items()}

    def close(self) -> None:
        self._held = {}
        self._view.close()
        self._subscriber.close()
        for channel in self._channels:
            channel.close()


class _Rank(Rank):
    def __init__(self, group: collective.Group, meeting: Meeting, way: Tensorwire) -> None:
        self._group = group
        self._meeting = meeting
        self._way = way
        self._opened = 0
        self.path = way.transports[0]
        self.note = f"{way.trainers} trainers" if way.trainers > 1 else way.note

    def barrier(self) -> None:
        self._group.barrier()

    def open(self, work: Work, params: Params) -> Weights:
        self._opened += 1
        rank, size, trainers = self._meeting.rank, self._meeting.size, self._way.trainers
        own = held(work, rank, size, trainers)
        ports = [
            os.path.join(self._meeting.folder, f"port-{self._opened}-{each}")
            for each in range(trainers)
        ]
        if rank < trainers:
            timed = work.case == PUBLISHED
            made: Weights = _Publisher(params, own, self.path, ports[rank], timed=timed)
            self.barrier()
            return made
        self.barrier()
        sources = [held(work, each, size, trainers) for each in range(trainers)]
        adopts = work.case == ADOPTED
        return _Subscriber(params, own, sources, self.path, ports, self._way, adopts=adopts)


class Tensorwire(Contender):
    """mode: of the subscribers. framework: of what they adopt."""

    role = "own"
    mode: Literal["copy", "in_place"] = "copy"
    framework: Framework = "numpy"
    note = ""
    transports = ("shm",)
    cases = frozenset(CASES) - {RESHARDED}

    def viable(self, transport: str) -> str | None:
        return None

    def variants(self) -> Mapping[str, Tensorwire]:
        return {
            "tensorwire-tcp": _OverTcp(),
            "tensorwire-in-place-tcp": _InPlace(),
            "tensorwire-torch": _Torch(),
            "tensorwire-sharded": _Sharded("shm"),
            "tensorwire-sharded-tcp": _Sharded("tcp"),
        }

    @contextmanager
    def join(self, meeting: Meeting) -> Iterator[Rank]:
        with collective.join(
            meeting.folder, meeting.rank, meeting.size, timeout=meeting.timeout
        ) as group:
            yield _Rank(group, meeting, self)


class _OverTcp(Tensorwire):
    transports = ("tcp",)
    cases = frozenset({COPIED, PUBLISHED})

    def variants(self) -> Mapping[str, _OverTcp]:
        return {}


class _InPlace(_OverTcp):
    """What comes is received into the parameters, as gloo and MPI do it."""

    mode = "in_place"
    note = "in place"


class _Torch(Tensorwire):
    """Tensors of PyTorch, which may be written: their memory is mapped privately."""

    cases = frozenset({ADOPTED})
    framework = "torch"
    note = "PyTorch"

    def viable(self, transport: str) -> str | None:
        return None if find_spec("torch") else "torch is not installed: pip install torch"

    def variants(self) -> Mapping[str, _Torch]:
        return {}


class _Sharded(Tensorwire):
    """Trainers that hold rows of each tensor."""

    cases = frozenset({RESHARDED})
    trainers = 4

    def __init__(self, transport: str) -> None:
        self.transports = (transport,)

    def variants(self) -> Mapping[str, _Sharded]:
        return {}
