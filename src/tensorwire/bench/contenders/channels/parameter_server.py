# SPDX-License-Identifier: Apache-2.0
"""A parameter server over gRPC: stock, and with Tensorwire's channels. Ranks push their gradients
and pull the averages, as soon as all have pushed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import grpc
import numpy as np

from tensorwire.bench.harness.work import Array
from tensorwire.bench.suites.channels.contender import Channel, Contender, Server, Trainer
from tensorwire.bench.suites.collectives.contender import Meeting
from tensorwire.bench.suites.parameter_server.service import Arrays, Joined, Segments
from tensorwire.collective import FileStore

SERVICE: Final = "tensorwire.bench.Averages"
_ADDRESS: Final = "address"
_GRACE_SECONDS: Final = 10.0
"""For the last replies, which are counted as pulled before they are sent."""


class Averages:
    """The service. A round ends when all ranks have pushed; then each pulls its averages once."""

    def __init__(self, wire: Joined, ranks: int, timeout: float) -> None:
        self._wire = wire
        self._ranks = ranks
        self._timeout = timeout
        self._lock = threading.RLock()  # guards what follows
        self._changed = threading.Condition(self._lock)
        self._pushed = 0
        self._sums: list[Array] = []
        self._averages: Arrays = []
        self._rounds = 0
        self._pulled = 0

    def push(self, gradients: Arrays, context: grpc.ServicerContext) -> bytes:
        with self._lock:
            if self._pushed == 0:
                self._sums = [self._wire.empty(each.size) for each in gradients]
                for each, gradient in zip(self._sums, gradients, strict=True):
                    np.copyto(each, gradient)
            else:
                for each, gradient in zip(self._sums, gradients, strict=True):
                    np.add(each, gradient, out=each)
            self._pushed += 1
            if self._pushed == self._ranks:
                for each in self._sums:
                    np.multiply(each, np.float32(1 / self._ranks), out=each)
                self._averages, self._pushed = self._wire.born(self._sums), 0
                self._rounds += 1
                self._changed.notify_all()
        return b""

    def pull(self, request: bytes, context: grpc.ServicerContext) -> Any:
        """request: the number of the round, from 1."""
        wanted = int(request)
        with self._lock:
            if not self._changed.wait_for(lambda: self._rounds >= wanted, self._timeout):
                context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "a rank has not pushed in time")
            averages = self._averages
        message = self._wire.serialize(averages)
        with self._lock:
            self._pulled += 1
            self._changed.notify_all()
        return message

    def meet(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Nothing: the first call makes the link."""
        return b""

    def wait(self, pulls: int) -> None:
        with self._lock:
            if not self._changed.wait_for(lambda: self._pulled >= pulls, self._timeout):
                raise TimeoutError("the ranks have not pulled in time")

    def handlers(self) -> grpc.GenericRpcHandler:
        unary = grpc.unary_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Meet": unary(self.meet),
                "Pull": unary(self.pull),
                "Push": unary(self.push, request_deserializer=self._wire.deserialize),
            },
        )


class _Server(Server):
    def __init__(self, averages: Averages, path: str, ranks: int) -> None:
        self.path = path
        self._averages = averages
        self._ranks = ranks
        self._steps = 0

    def serve(self, steps: int) -> None:
        self._steps += steps
        self._averages.wait(self._steps * self._ranks)


class _Trainer(Trainer):
    def __init__(self, wire: Joined, channel: Any, elements: Sequence[int], timeout: float) -> None:
        self._wire = wire
        self._elements = elements
        self._timeout = timeout
        self._round = 0
        channel.unary_unary(f"/{SERVICE}/Meet")(b"", timeout=timeout)
        self.path = wire.travelled(channel)[0]
        self._push = channel.unary_unary(f"/{SERVICE}/Push", request_serializer=wire.serialize)
        self._pull = channel.unary_unary(f"/{SERVICE}/Pull", response_deserializer=wire.deserialize)

    def gradients(self) -> Sequence[Array]:
        return [self._wire.empty(count) for count in self._elements]

    def average(self, gradients: Sequence[Array]) -> Sequence[Array]:
        self._round += 1
        self._push(self._wire.born(gradients), timeout=self._timeout)
        averages: Sequence[Array] = self._pull(b"%d" % self._round, timeout=self._timeout)
        return averages


class _ParameterServer(Contender):
    servers = 1
    wire: type[Joined]

    @contextmanager
    def join(self, meeting: Meeting, transport: str, elements: Sequence[int]) -> Iterator[Channel]:
        wire, store = self.wire(elements), FileStore(meeting.folder)
        if meeting.rank < meeting.size:
            address = store.get(_ADDRESS, meeting.timeout).decode()
            with wire.channel(address) as channel:
                yield _Trainer(wire, channel, elements, meeting.timeout)
            return
        averages = Averages(wire, meeting.size, meeting.timeout)
        server = wire.server(meeting.size + 1)
        server.add_generic_rpc_handlers((averages.handlers(),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        store.set(_ADDRESS, f"127.0.0.1:{port}".encode())
        try:
            yield _Server(averages, transport, meeting.size)
        finally:
            server.stop(_GRACE_SECONDS).wait()


class Grpcio(_ParameterServer):
    transports = ("grpc",)
    packages = ("grpcio",)
    wire = Joined

    def viable(self, transport: str) -> str | None:
        return None


class Tensorwire(_ParameterServer):
    role = "own"
    transports = ("shm", "verbs", "tcp")
    wire = Segments

    def viable(self, transport: str) -> str | None:
        from tensorwire.transports import why_not

        return why_not(transport)

    def environment(self, transport: str) -> dict[str, str]:
        return {"TENSORWIRE_TRANSPORT": transport}
