# SPDX-License-Identifier: Apache-2.0
"""grpc.aio: grpcio's stubs and servicers for asyncio, with the messages and options of the
baseline. A call is a task of its own in the caller's event loop, which costs some microseconds
besides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from tensorwire.bench.contenders.rpc.grpc_aio import opened, running
from tensorwire.bench.contenders.tf_grpc.grpcio import Caller, handlers, of_grpc
from tensorwire.bench.harness.tokens import async_guards
from tensorwire.bench.suites.rpc.contender import ANSWER
from tensorwire.bench.suites.tf_grpc.contender import (
    PROCEDURES,
    Begin,
    Call,
    Client,
    Contender,
    Request,
    answer,
)
from tensorwire.bench.suites.tf_grpc.messages import Messages, Reply


def _by_coroutine(reply: Reply) -> Callable[[Any, Any], Coroutine[Any, Any, Any]]:
    async def behavior(request: Any, context: Any) -> Any:
        return reply(request)

    return behavior


class _Caller(Caller):
    def __init__(
        self, loop: asyncio.AbstractEventLoop, channel: grpc.aio.Channel, token: str | None
    ) -> None:
        super().__init__(channel, token)
        self._loop = loop

    def _call(self, stub: Any, message: Any, messages: Messages, request: Request) -> Call:
        run, called = self._loop.run_until_complete, self._called(stub, message, messages, request)
        return lambda: run(called())

    def _begin(self, stub: Any, message: Any, messages: Messages, request: Request) -> Begin:
        loop, called = self._loop, self._called(stub, message, messages, request)

        def begin() -> Call:
            task = loop.create_task(called())
            loop.run_until_complete(asyncio.sleep(0))  # it goes as far as it goes without waiting
            return lambda: loop.run_until_complete(task)

        return begin

    def _called(
        self, stub: Any, message: Any, messages: Messages, request: Request
    ) -> Callable[[], Coroutine[Any, Any, int]]:
        buffers, reads = messages.buffers, request.reads
        unpack, metadata = ANSWER.unpack, self.metadata

        async def echoed() -> int:
            return answer(buffers(await stub(message, metadata=metadata)), reads)

        async def acknowledged() -> int:
            return int(unpack(await stub(message, metadata=metadata))[0])

        return echoed if request.procedure == "echo" else acknowledged


class GrpcAio(Contender):
    transports = ("grpc",)
    packages = ("protobuf",)
    joins = True
    pipelines = frozenset(PROCEDURES)

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        procedures = handlers(of_grpc(), _by_coroutine)
        with running([procedures], host, port, async_guards(token)) as address:
            yield address

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        with opened(address) as (loop, channel):
            yield _Caller(loop, channel, token)
