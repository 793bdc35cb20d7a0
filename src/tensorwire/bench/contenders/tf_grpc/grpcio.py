# SPDX-License-Identifier: Apache-2.0
"""Stock grpcio: sync stubs and a thread pool. Buffers that are not serialized travel as ready
``bytes``: joining them, as a program with buffers must, is left out of the times. ``grpcio-unix``
is the same over a socket of the file system."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeAlias, TypeVar

import grpc

from tensorwire.bench.contenders.rpc.grpcio import listening
from tensorwire.bench.harness.tokens import guards, proof
from tensorwire.bench.suites.rpc.contender import ANSWER
from tensorwire.bench.suites.rpc.messages import OPTIONS, why_no_protobuf
from tensorwire.bench.suites.tf_grpc.contender import (
    PROCEDURES,
    Begin,
    Call,
    Client,
    Contender,
    Request,
    answer,
)
from tensorwire.bench.suites.tf_grpc.messages import (
    Messages,
    Reply,
    Stopwatch,
    joined,
    protobuf,
    reply,
)

SERVICE: Final = "tensorwire.bench.Payloads"
THREADS: Final = 8
"""Of a server: workers call at the same time."""

Stub: TypeAlias = "grpc.UnaryUnaryMultiCallable[Any, Any]"
_T = TypeVar("_T")


def method(procedure: str, mode: str, reads: bool) -> str:
    """The name of the procedure that a server has for such calls."""
    return f"{procedure}-{mode}{'-reading' if reads else ''}"


def handlers(
    messages: Mapping[str, Messages], behave: Callable[[Reply], Any] = lambda reply: reply
) -> grpc.GenericRpcHandler:
    """The procedures of a server. messages: by mode. behave: makes a servicer's behavior of what
    replies to a message."""
    found: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for mode, each in messages.items():
        for procedure in PROCEDURES:
            for reads in (False, True):
                found[method(procedure, mode, reads)] = grpc.unary_unary_rpc_method_handler(
                    behave(reply(each, procedure, reads)),
                    request_deserializer=each.deserializer,
                    response_serializer=each.serializer if procedure == "echo" else None,
                )
    return grpc.method_handlers_generic_handler(SERVICE, found)


class Caller(Client):
    """The stubs. channel: any that is like grpcio's."""

    def __init__(self, channel: Any, token: str | None, path: str = "grpc") -> None:
        self.channel = channel
        self.metadata = proof(token)
        self.stopwatch = Stopwatch()
        self.taken = path

    def path(self) -> str:
        return self.taken  # of the address: gRPC goes no other way than that

    def messages(self, request: Request) -> Messages:
        return of_grpc()[request.mode]

    def serialization_ns(self) -> int:
        return self.stopwatch.nanoseconds

    def calls(self, request: Request) -> AbstractContextManager[Sequence[Call]]:
        return self._each(request, self._call)

    def begun(self, request: Request) -> AbstractContextManager[Sequence[Begin]]:
        return self._each(request, self._begin)

    @contextmanager
    def _each(
        self, request: Request, make: Callable[[Stub, Any, Messages, Request], _T]
    ) -> Iterator[Sequence[_T]]:
        messages = self.messages(request)
        if request.mode == "serialized":
            messages = self.stopwatch.of(messages)
        echoes = request.procedure == "echo"
        name = method(request.procedure, request.mode, request.reads)
        stub: Stub = self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=messages.serializer,
            response_deserializer=messages.deserializer if echoes else None,
        )
        calls = {
            payload: make(stub, messages.make(payload), messages, request)
            for payload in set(request.payloads)
        }
        yield [calls[payload] for payload in request.payloads]

    def _call(self, stub: Stub, message: Any, messages: Messages, request: Request) -> Call:
        buffers, reads = messages.buffers, request.reads
        unpack, metadata = ANSWER.unpack, self.metadata
        if request.procedure == "echo":
            return lambda: answer(buffers(stub(message, metadata=metadata)), reads)
        return lambda: int(unpack(stub(message, metadata=metadata))[0])

    def _begin(self, stub: Stub, message: Any, messages: Messages, request: Request) -> Begin:
        buffers, reads = messages.buffers, request.reads
        unpack, metadata = ANSWER.unpack, self.metadata

        def echo() -> Call:
            call = stub.future(message, metadata=metadata)
            return lambda: answer(buffers(call.result()), reads)

        def acknowledged() -> Call:
            call = stub.future(message, metadata=metadata)
            return lambda: int(unpack(call.result())[0])

        return echo if request.procedure == "echo" else acknowledged


def of_grpc() -> dict[str, Messages]:
    """By mode; serialized messages where protobuf is installed."""
    found = {"non-serialized": joined()}
    if why_no_protobuf() is None:
        found["serialized"] = protobuf()
    return found


class Grpcio(Contender):
    packages = ("protobuf",)
    joins = True
    pipelines = frozenset(PROCEDURES)

    def __init__(self, transport: str = "grpc") -> None:
        self.transports = (transport,)
        self.near = transport == "unix"

    def variants(self) -> dict[str, Grpcio]:
        return {"grpcio-unix": Grpcio("unix")}

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        server = grpc.server(
            ThreadPoolExecutor(THREADS),
            options=OPTIONS,
            handlers=[handlers(of_grpc())],
            interceptors=guards(token),
        )
        with listening(server, transport, host, port) as address:
            server.start()
            try:
                yield address
            finally:
                server.stop(None).wait()

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        with grpc.insecure_channel(address, options=OPTIONS) as channel:
            yield Caller(channel, token, transport)
