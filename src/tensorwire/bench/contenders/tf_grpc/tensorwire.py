# SPDX-License-Identifier: Apache-2.0
"""Tensorwire itself: grpcio's service and stubs, whose messages may be lists of buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import tensorwire
from tensorwire.bench.contenders.tf_grpc.grpcio import (
    SERVICE,
    THREADS,
    Caller,
    handlers,
    method,
    of_grpc,
)
from tensorwire.bench.harness.tokens import guards, proof
from tensorwire.bench.suites.rpc.messages import OPTIONS
from tensorwire.bench.suites.tf_grpc.contender import (
    MODES,
    ORIGINS,
    PROCEDURES,
    Client,
    Contender,
    Octets,
    Request,
    buffers,
    fill,
    octets,
)
from tensorwire.bench.suites.tf_grpc.ideas import IDEAS, PIPELINING, why_same
from tensorwire.bench.suites.tf_grpc.messages import Messages
from tensorwire.bench.suites.tf_grpc.payloads import Payload
from tensorwire.rpc import segments
from tensorwire.transports import names, why_not

if TYPE_CHECKING:
    from tensorwire.rpc.choice import Transport


def published(payload: Payload) -> list[Octets]:
    """Buffers in this process's arena."""
    return [
        tensorwire.publish(fill(tensorwire.empty(size, np.uint8), place))
        for place, size in enumerate(payload)
    ]


def in_segments(origin: str) -> Messages:
    """Each buffer is a segment of the message, and stays where it is."""
    make = published if origin == "published" else buffers
    return Messages(
        lambda payload: tuple(make(payload)),
        lambda message: [octets(buffer) for buffer in message],
        tuple,
        segments(list),
    )


class _Caller(Caller):
    def __init__(self, channel: Any, token: str | None, note: str) -> None:
        super().__init__(channel, token)
        self._note = note

    def path(self) -> str:
        return self.channel.path().transport  # type: ignore[no-any-return]

    def note(self) -> str:
        return self._note

    def messages(self, request: Request) -> Messages:
        if request.mode == "non-serialized":
            return in_segments(request.origin)
        return super().messages(request)


class Tensorwire(Contender):
    role = "own"
    transports = names()
    packages = ("protobuf",)
    origins = frozenset(ORIGINS)
    pipelines = frozenset(PROCEDURES)

    def __init__(self, without: str = "") -> None:
        """without: one of ``IDEAS``; empty: it has all of them."""
        self.without = without
        self.windows = without != PIPELINING

    def variants(self) -> dict[str, Tensorwire]:
        """Without one idea each."""
        return {f"tensorwire-without-{idea}": Tensorwire(idea) for idea in IDEAS}

    def environment(self) -> Mapping[str, str]:
        return IDEAS.get(self.without, {})

    def viable(self, transport: str) -> str | None:
        if transport not in names():
            return f"measured over {', '.join(names())}: grpcio's row is what gRPC gives"
        if self.without and (reason := why_same(self.without, transport)) is not None:
            return f"without {self.without} it is the same: {reason}"
        return why_not(transport)

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        messages = {**of_grpc(), "non-serialized": in_segments("ordinary")}
        server = tensorwire.server(
            ThreadPoolExecutor(THREADS), options=OPTIONS, interceptors=guards(token)
        )
        server.add_generic_rpc_handlers((handlers(messages),))
        bound = server.add_insecure_port(f"{host}:{port}")
        server.start()
        try:
            yield f"{host}:{bound}"
        finally:
            server.stop(None).wait()

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        channel: Any = tensorwire.insecure_channel(
            address, options=OPTIONS, transport=cast("Transport", transport)
        )
        with channel:
            first = channel.unary_unary(f"/{SERVICE}/{method('acknowledge', MODES[0], False)}")
            first(b"\0", metadata=proof(token))  # whose token makes the link that path() tells
            yield _Caller(channel, token, "" if self.windows else "one call under way")
