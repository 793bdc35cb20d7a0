# SPDX-License-Identifier: Apache-2.0
"""Tensorwire itself: the same services and stubs as grpcio's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import tensorwire
from tensorwire.bench.contenders.rpc.grpcio import WORKERS, Caller, Calls
from tensorwire.bench.harness.work import Array, Work, fill, payload, view
from tensorwire.bench.suites.rpc.contender import Client, Contender, Server
from tensorwire.bench.suites.rpc.messages import (
    OPTIONS,
    PAYLOADS,
    Messages,
    of_grpc,
    why_no_protobuf,
)
from tensorwire.rpc import segments
from tensorwire.transports import names, why_not

if TYPE_CHECKING:
    from tensorwire.rpc.choice import Transport


def memory(work: Work) -> Array:
    """The array to send: ordinary memory, or published in this process's arena."""
    if work.origin == "ordinary":
        return payload(work.size)
    return tensorwire.publish(fill(tensorwire.empty(work.size // 4, np.float32)))


def one_segment(array: Array) -> tuple[Array]:
    return (array,)


@segments
def first(buffers: Sequence[Any]) -> Any:
    return buffers[0]


def coded() -> Messages:
    """Of the same class as plain protobuf's, with an array attached and a view received."""
    from google.protobuf.wrappers_pb2 import BytesValue

    from tensorwire.protobuf import Attached
    from tensorwire.protobuf.codec import Codec

    def attached(work: Work) -> Attached[BytesValue]:
        made = Attached(BytesValue())
        made["value"] = payload(work.size)
        return made

    codec = Codec(views=True, segments=True)
    return Messages(
        attached,
        lambda message: view(message["value"]),
        codec.serializer(BytesValue.SerializeToString),
        codec.deserializer(BytesValue.FromString),
    )


def messages() -> dict[str, Messages]:
    """grpcio's, but for arrays, which need not become bytes."""
    found = {**of_grpc(), "array": Messages(memory, view, one_segment, first)}
    if why_no_protobuf() is None:
        found["protobuf-codec"] = coded()
    return found


class _Caller(Caller):
    def path(self) -> str:
        return self.channel.path().transport  # type: ignore[attr-defined,no-any-return]


class Tensorwire(Contender):
    role = "own"
    transports = names()
    origins = frozenset({"ordinary", "published"})
    payloads = frozenset(PAYLOADS)

    def viable(self, transport: str) -> str | None:
        return why_not(transport) if transport in names() else None

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        calls = Calls(messages())
        server = tensorwire.server(ThreadPoolExecutor(WORKERS), options=OPTIONS)
        server.add_generic_rpc_handlers(tuple(calls.handlers()))
        calls.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield calls
        finally:
            server.stop(None).wait()

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        required = cast("Transport", transport)
        with tensorwire.insecure_channel(address, options=OPTIONS, transport=required) as channel:
            yield _Caller(channel, messages())
