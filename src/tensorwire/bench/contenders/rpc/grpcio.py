# SPDX-License-Identifier: Apache-2.0
"""Stock grpcio, the baseline: sync calls, identity serializers, default options but for the limits
on message sizes. ``grpcio-unix`` is the same over a socket of the file system: no TCP, and no
congestion control.

Its messages are ready: the copy out of an array that a real program pays first is left out of its
time. Received bytes become arrays without a copy.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import grpc

from tensorwire.bench.harness.work import Work, answer
from tensorwire.bench.suites.rpc.contender import (
    ANSWER,
    Call,
    Client,
    Contender,
    Server,
    Stream,
    ready,
)
from tensorwire.bench.suites.rpc.messages import OPTIONS, PAYLOADS, Messages, of_grpc

WORKERS = 16


def service(payload: str) -> str:
    return f"tensorwire.bench.{payload}"


def method(payload: str, name: str) -> str:
    return f"/{service(payload)}/{name}"


class Calls(Server):
    """One service for each kind of payload; what they are to the library is left open."""

    def __init__(self, messages: Mapping[str, Messages]) -> None:
        self.messages = messages
        self.reply: Any = None

    def prepare(self, work: Work) -> None:
        self.reply = None
        if work.case == "pull":
            self.reply = self.messages[work.payload].make(work)

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return [self._handler(payload, each) for payload, each in self.messages.items()]

    def _handler(self, payload: str, messages: Messages) -> grpc.GenericRpcHandler:
        array, deserializer = messages.array, messages.deserializer

        def take(request: Any, context: grpc.ServicerContext) -> bytes:
            return ANSWER.pack(answer(array(request), False))

        def add(request: Any, context: grpc.ServicerContext) -> bytes:
            return ANSWER.pack(answer(array(request), True))

        def give(request: Any, context: grpc.ServicerContext) -> Any:
            return self.reply

        def count(requests: Iterator[Any], context: grpc.ServicerContext) -> bytes:
            return ANSWER.pack(sum(1 for _ in requests))

        unary = grpc.unary_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            service(payload),
            {
                "Take": unary(take, request_deserializer=deserializer),
                "Add": unary(add, request_deserializer=deserializer),
                "Give": unary(give, response_serializer=messages.serializer),
                "Count": grpc.stream_unary_rpc_method_handler(
                    count, request_deserializer=deserializer
                ),
            },
        )


class Caller(Client):
    """The stubs."""

    def __init__(
        self, channel: grpc.Channel, messages: Mapping[str, Messages], path: str = "grpc"
    ) -> None:
        self.channel = channel
        self.messages = messages
        self.taken = path

    def path(self) -> str:
        return self.taken  # of the address: gRPC goes no other way than that

    def call(self, work: Work) -> AbstractContextManager[Call]:
        reads, messages = work.reads, self.messages[work.payload]
        if work.case == "pull":
            pull: grpc.UnaryUnaryMultiCallable[Any, Any] = self.channel.unary_unary(
                method(work.payload, "Give"), response_deserializer=messages.deserializer
            )
            array = messages.array
            return ready(lambda: answer(array(pull(b"\0" * 8)), reads))
        push: grpc.UnaryUnaryMultiCallable[Any, Any] = self.channel.unary_unary(
            method(work.payload, "Add" if reads else "Take"), request_serializer=messages.serializer
        )
        message, unpack = messages.make(work), ANSWER.unpack
        return ready(lambda: unpack(push(message))[0])

    def stream(self, work: Work) -> AbstractContextManager[Stream]:
        messages = self.messages[work.payload]
        send: grpc.StreamUnaryMultiCallable[Any, Any] = self.channel.stream_unary(
            method(work.payload, "Count"), request_serializer=messages.serializer
        )
        message, unpack = messages.make(work), ANSWER.unpack
        return ready(lambda count: unpack(send(itertools.repeat(message, count)))[0])


@contextmanager
def listening(server: grpc.Server, transport: str, host: str, port: int) -> Iterator[str]:
    """Of a server that has not been started, the address at which it will listen. transport:
    ``grpc``, which is TCP, or ``unix``. host, port: of TCP; port 0 is any that is free."""
    if transport == "unix":
        with tempfile.TemporaryDirectory(prefix="tensorwire-") as folder:
            address = f"unix:{folder}/socket"
            server.add_insecure_port(address)
            yield address
    else:
        yield f"{host}:{server.add_insecure_port(f'{host}:{port}')}"


class Grpcio(Contender):
    payloads = frozenset(PAYLOADS)

    def __init__(self, transport: str = "grpc") -> None:
        self.transports = (transport,)

    def variants(self) -> dict[str, Grpcio]:
        return {"grpcio-unix": Grpcio("unix")}

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        calls = Calls(of_grpc())
        server = grpc.server(
            ThreadPoolExecutor(WORKERS), options=OPTIONS, handlers=calls.handlers()
        )
        with listening(server, transport, "127.0.0.1", 0) as calls.address:
            server.start()
            try:
                yield calls
            finally:
                server.stop(None).wait()

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        with grpc.insecure_channel(address, options=OPTIONS) as channel:
            yield Caller(channel, of_grpc(), transport)
