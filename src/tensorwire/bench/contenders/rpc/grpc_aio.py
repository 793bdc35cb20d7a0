# SPDX-License-Identifier: Apache-2.0
"""grpc.aio: grpcio's stubs and servicers for asyncio, with the messages and options of the
baseline. A call is a task of its own, one after the other in the caller's event loop, which costs
some microseconds besides."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import grpc

from tensorwire.bench.contenders.rpc.grpcio import Calls, method, service
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


class _Calls(Calls):
    """The same service, by coroutines."""

    def _handler(self, payload: str, messages: Messages) -> grpc.GenericRpcHandler:
        array, deserializer = messages.array, messages.deserializer

        async def take(request: Any, context: Any) -> bytes:
            return ANSWER.pack(answer(array(request), False))

        async def add(request: Any, context: Any) -> bytes:
            return ANSWER.pack(answer(array(request), True))

        async def give(request: Any, context: Any) -> Any:
            return self.reply

        async def count(requests: AsyncIterator[Any], context: Any) -> bytes:
            found = 0
            async for _ in requests:
                found += 1
            return ANSWER.pack(found)

        unary: Any = grpc.unary_unary_rpc_method_handler
        stream: Any = grpc.stream_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            service(payload),
            {
                "Take": unary(take, request_deserializer=deserializer),
                "Add": unary(add, request_deserializer=deserializer),
                "Give": unary(give, response_serializer=messages.serializer),
                "Count": stream(count, request_deserializer=deserializer),
            },
        )


class _Client(Client):
    def __init__(self, loop: asyncio.AbstractEventLoop, channel: grpc.aio.Channel) -> None:
        self.loop = loop
        self.channel = channel
        self.messages = of_grpc()

    def path(self) -> str:
        return "grpc"

    def call(self, work: Work) -> AbstractContextManager[Call]:
        reads, messages = work.reads, self.messages[work.payload]
        loop = self.loop
        if work.case == "pull":
            pull: Any = self.channel.unary_unary(
                method(work.payload, "Give"), response_deserializer=messages.deserializer
            )
            array = messages.array

            async def pulled() -> int:
                return answer(array(await pull(b"\0" * 8)), reads)

            return ready(lambda: loop.run_until_complete(pulled()))
        push: Any = self.channel.unary_unary(
            method(work.payload, "Add" if reads else "Take"), request_serializer=messages.serializer
        )
        message, unpack = messages.make(work), ANSWER.unpack

        async def pushed() -> int:
            return int(unpack(await push(message))[0])

        return ready(lambda: loop.run_until_complete(pushed()))

    def stream(self, work: Work) -> AbstractContextManager[Stream]:
        messages, loop = self.messages[work.payload], self.loop
        send: Any = self.channel.stream_unary(
            method(work.payload, "Count"), request_serializer=messages.serializer
        )
        message, unpack = messages.make(work), ANSWER.unpack

        async def sent(count: int) -> int:
            call = send()
            for _ in range(count):
                await call.write(message)
            await call.done_writing()
            return int(unpack(await call)[0])

        return ready(lambda count: loop.run_until_complete(sent(count)))


@contextmanager
def running(
    handlers: Sequence[grpc.GenericRpcHandler],
    host: str,
    port: int,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> Iterator[str]:
    """A server, in a thread of its own, while the context is open; yields its address. port: 0 for
    any that is free."""
    started, ended, loop = Future[str](), asyncio.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        server = grpc.aio.server(options=OPTIONS, handlers=handlers, interceptors=interceptors)
        try:
            address = f"{host}:{server.add_insecure_port(f'{host}:{port}')}"
            await server.start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(address)
        await ended.wait()
        await server.stop(None)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield started.result()
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


@contextmanager
def opened(address: str) -> Iterator[tuple[asyncio.AbstractEventLoop, grpc.aio.Channel]]:
    """A channel, and the loop in which it is used."""

    async def open_() -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address, options=OPTIONS)

    loop = asyncio.new_event_loop()
    try:
        channel = loop.run_until_complete(open_())
        try:
            yield loop, channel
        finally:
            loop.run_until_complete(channel.close())
    finally:
        loop.close()


class GrpcAio(Contender):
    transports = ("grpc",)
    payloads = frozenset(PAYLOADS)
    concurrent = False

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        calls = _Calls(of_grpc())
        with running(calls.handlers(), "127.0.0.1", 0) as calls.address:
            yield calls

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        with opened(address) as (loop, channel):
            yield _Client(loop, channel)
