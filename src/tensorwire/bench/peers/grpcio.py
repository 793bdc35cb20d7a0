"""Stock grpcio, the baseline: sync calls, identity serializers, default options but for the limits
on message sizes.

Its messages are ready ``bytes``: the copy out of an array that a real program pays first is left
out of its time. Received messages become arrays without a copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import grpc

from tensorwire.bench.peers.base import ANSWER, Call, Client, Peer, Server, Stream, ready
from tensorwire.bench.work import Work, answer, payload, view

SERVICE = "tensorwire.bench.Calls"
WORKERS = 16
OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


def method(name: str) -> str:
    return f"/{SERVICE}/{name}"


class Calls(Server):
    """The service, with what differs between libraries left open: how messages become arrays."""

    def __init__(self) -> None:
        self.reply: Any = b""

    def prepare(self, work: Work) -> None:
        self.reply = b""
        if work.case == "pull":
            self.reply = payload(work.size).tobytes()

    def array(self, message: Any) -> Any:
        return view(message)

    def take(self, request: Any, context: grpc.ServicerContext) -> bytes:
        return ANSWER.pack(answer(self.array(request), False))

    def add(self, request: Any, context: grpc.ServicerContext) -> bytes:
        return ANSWER.pack(answer(self.array(request), True))

    def give(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self.reply

    def count(self, requests: Iterator[Any], context: grpc.ServicerContext) -> bytes:
        return ANSWER.pack(sum(1 for _ in requests))


def handlers(
    calls: Calls,
    deserializer: Callable[[Any], Any] | None = None,
    serializer: Callable[[Any], Any] | None = None,
) -> grpc.GenericRpcHandler:
    """deserializer: of requests that carry a payload; serializer: of replies that do."""
    unary = grpc.unary_unary_rpc_method_handler
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Take": unary(calls.take, request_deserializer=deserializer),
            "Add": unary(calls.add, request_deserializer=deserializer),
            "Give": unary(calls.give, response_serializer=serializer),
            "Count": grpc.stream_unary_rpc_method_handler(
                calls.count, request_deserializer=deserializer
            ),
        },
    )


class Caller(Client):
    """The stub; a subclass says how arrays become messages and back."""

    serializer: Callable[[Any], Any] | None = None
    deserializer: Callable[[Any], Any] | None = None

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel

    def path(self) -> str:
        return "grpc"

    def message(self, work: Work) -> Any:
        return payload(work.size).tobytes()

    def array(self, message: Any) -> Any:
        return view(message)

    def call(self, work: Work) -> AbstractContextManager[Call]:
        reads = work.reads
        if work.case == "pull":
            pull: grpc.UnaryUnaryMultiCallable[Any, Any] = self.channel.unary_unary(
                method("Give"), response_deserializer=type(self).deserializer
            )
            array = self.array
            return ready(lambda: answer(array(pull(b"\0" * 8)), reads))
        push: grpc.UnaryUnaryMultiCallable[Any, Any] = self.channel.unary_unary(
            method("Add" if reads else "Take"), request_serializer=type(self).serializer
        )
        message, unpack = self.message(work), ANSWER.unpack
        return ready(lambda: unpack(push(message))[0])

    def stream(self, work: Work) -> AbstractContextManager[Stream]:
        send: grpc.StreamUnaryMultiCallable[Any, Any] = self.channel.stream_unary(
            method("Count"), request_serializer=type(self).serializer
        )
        message, unpack = self.message(work), ANSWER.unpack
        return ready(lambda count: unpack(send(itertools.repeat(message, count)))[0])


class Grpcio(Peer):
    name = "grpcio"
    transports = ("grpc",)

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        calls = Calls()
        server = grpc.server(
            ThreadPoolExecutor(WORKERS), options=OPTIONS, handlers=[handlers(calls)]
        )
        calls.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield calls
        finally:
            server.stop(None).wait()

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        with grpc.insecure_channel(address, options=OPTIONS) as channel:
            yield Caller(channel)


def make() -> Peer:
    return Grpcio()
