# SPDX-License-Identifier: Apache-2.0
"""Tensorwire's publisher and subscribers, with its default settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorwire
from tensorwire import collective, weights
from tensorwire.bench.suites.collectives.contender import Meeting
from tensorwire.bench.suites.weights.contender import (
    ADOPTED,
    CASES,
    PUBLISHED,
    TRAINER,
    Contender,
    Params,
    Rank,
    Weights,
)


class _Publisher(Weights):
    def __init__(self, params: Params, transport: Any, port: str, *, timed: bool) -> None:
        self._server = tensorwire.server(ThreadPoolExecutor(4), transport=transport)
        self._publisher = weights.Publisher(params, self._server)
        bound = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        with open(port, "w") as file:
            file.write(str(bound))
        self._timed = timed

    def prepare(self, number: int) -> None:
        if not self._timed:
            self._publisher.publish(number)

    def move(self, number: int) -> None:
        if self._timed:
            self._publisher.publish(number)

    def held(self) -> Params:
        raise NotImplementedError

    def close(self) -> None:
        self._publisher.close()
        self._server.stop(None)


class _Subscriber(Weights):
    def __init__(self, params: Params, transport: Any, port: str, *, adopts: bool) -> None:
        with open(port) as file:
            target = f"127.0.0.1:{file.read()}"
        options = [("grpc.max_receive_message_length", -1)]
        self._channel = tensorwire.insecure_channel(target, options, transport=transport)
        self._subscriber = weights.Subscriber(self._channel, params)
        self._adopts = adopts
        self._view = ExitStack()
        self._held: Params = params

    def prepare(self, number: int) -> None:
        if self._adopts:
            self._held = {}
            self._view.close()

    def move(self, number: int) -> None:
        if self._adopts:
            self._held = self._view.enter_context(self._subscriber.view(at_least=number))
        else:
            self._subscriber.pull(at_least=number)

    def held(self) -> Params:
        return self._held

    def close(self) -> None:
        self._held = {}
        self._view.close()
        self._subscriber.close()
        self._channel.close()


class _Rank(Rank):
    def __init__(self, group: collective.Group, meeting: Meeting, transport: str) -> None:
        self._group = group
        self._meeting = meeting
        self._opened = 0
        self.path = transport

    def barrier(self) -> None:
        self._group.barrier()

    def open(self, case: str, params: Params) -> Weights:
        self._opened += 1
        port = os.path.join(self._meeting.folder, f"port-{self._opened}")
        if self._meeting.rank == TRAINER:
            made: Weights = _Publisher(params, self.path, port, timed=case == PUBLISHED)
            self.barrier()
            return made
        self.barrier()
        return _Subscriber(params, self.path, port, adopts=case == ADOPTED)


class Tensorwire(Contender):
    role = "own"
    transports = ("shm",)
    cases = frozenset(CASES)

    def viable(self, transport: str) -> str | None:
        return None

    def variants(self) -> Mapping[str, Tensorwire]:
        return {"tensorwire-tcp": _OverTcp()}

    @contextmanager
    def join(self, meeting: Meeting) -> Iterator[Rank]:
        with collective.join(
            meeting.folder, meeting.rank, meeting.size, timeout=meeting.timeout
        ) as group:
            yield _Rank(group, meeting, self.transports[0])


class _OverTcp(Tensorwire):
    transports = ("tcp",)
    cases = frozenset(CASES) - {ADOPTED}

    def variants(self) -> Mapping[str, _OverTcp]:
        return {}
