# SPDX-License-Identifier: Apache-2.0
"""grpcio: one call for each version, whose stream brings a tensor in each message, as ``bytes``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

from tensorwire import collective
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.contender import Meeting
from tensorwire.bench.suites.weights.contender import TRAINER, Contender, Params, Rank, Weights

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class _Server(Weights):
    def __init__(self, params: Params, port: str) -> None:
        def pull(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            return (param.tobytes() for param in params.values())

        self._params = params
        handlers: Any = {"Pull": grpc.unary_stream_rpc_method_handler(pull)}
        self._server = grpc.server(ThreadPoolExecutor(4), options=UNLIMITED)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("bench.Weights", handlers),)
        )
        bound = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        with open(port, "w") as file:
            file.write(str(bound))

    def prepare(self, number: int) -> None:
        return

    def move(self, number: int) -> None:
        return

    def held(self) -> Params:
        return self._params

    def close(self) -> None:
        self._server.stop(None)


class _Client(Weights):
    def __init__(self, params: Params, port: str) -> None:
        with open(port) as file:
            self._channel = grpc.insecure_channel(f"127.0.0.1:{file.read()}", UNLIMITED)
        self._call: Any = self._channel.unary_stream("/bench.Weights/Pull")
        self._params = params

    def prepare(self, number: int) -> None:
        return

    def move(self, number: int) -> None:
        for param, message in zip(self._params.values(), self._call(b""), strict=True):
            np.copyto(param, np.frombuffer(message, np.uint8))

    def held(self) -> Params:
        return self._params

    def close(self) -> None:
        self._channel.close()


class _Rank(Rank):
    path = "grpc"

    def __init__(self, group: collective.Group, meeting: Meeting) -> None:
        self._group = group
        self._meeting = meeting
        self._opened = 0

    def barrier(self) -> None:
        self._group.barrier()

    def open(self, work: Work, params: Params) -> Weights:
        self._opened += 1
        port = os.path.join(self._meeting.folder, f"port-{self._opened}")
        if self._meeting.rank == TRAINER:
            made: Weights = _Server(params, port)
            self.barrier()
            return made
        self.barrier()
        return _Client(params, port)


class Grpcio(Contender):
    transports = ("grpc",)
    packages = ("grpcio",)

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def join(self, meeting: Meeting) -> Iterator[Rank]:
        with collective.join(
            meeting.folder, meeting.rank, meeting.size, timeout=meeting.timeout
        ) as group:
            yield _Rank(group, meeting)
