# SPDX-License-Identifier: Apache-2.0
"""pyzmq: DEALER to ROUTER, a message of several parts with a buffer in each, handed over and
received without a copy where ZeroMQ can (it copies parts below its own threshold). One thread of a
server serves all of its callers."""

from __future__ import annotations

import socket as sockets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from tensorwire.bench.contenders.rpc import zmq as calls
from tensorwire.bench.suites.rpc.messages import why_no_protobuf
from tensorwire.bench.suites.tf_grpc.contender import (
    PROCEDURES,
    Client,
    Contender,
    Request,
    buffers,
    octets,
)
from tensorwire.bench.suites.tf_grpc.exchange import Exchange, Exchanging, Head
from tensorwire.bench.suites.tf_grpc.messages import Messages, Reply, protobuf, reply
from tensorwire.bench.suites.tf_grpc.payloads import MOST_BYTES

_REFUSAL: Final = b""


def _in_parts() -> dict[str, Messages]:
    """By mode. What is serialized is one part."""
    found = {
        "non-serialized": Messages(
            buffers,
            lambda parts: [octets(part.buffer) for part in parts],
        )
    }
    if why_no_protobuf() is None:
        whole = protobuf()
        pack, unpack = whole.serializer, whole.deserializer
        assert pack is not None
        assert unpack is not None
        found["serialized"] = replace(
            whole,
            serializer=lambda message: [pack(message)],
            deserializer=lambda parts: unpack(parts[0].buffer),
        )
    return found


class _Server:
    def __init__(self, token: str | None) -> None:
        self._token = token
        self._messages = _in_parts()
        self._replying = cache(self._reply)

    def arrived(self, socket: Any) -> None:
        caller, head, *parts = socket.recv_multipart(copy=False)
        shown = Head.shown(head.bytes, self._token)
        if shown is None:
            socket.send_multipart([caller, _REFUSAL])
        else:
            socket.send_multipart([caller, *self._replying(shown)(parts)], copy=False)

    def _reply(self, head: Head) -> Reply:
        messages = self._messages[head.mode]
        make = reply(messages, head.procedure, head.reads)
        pack, unpack = messages.serializer or _same, messages.deserializer or _same
        if head.procedure == "echo":
            return lambda parts: pack(make(unpack(parts)))
        return lambda parts: [make(unpack(parts))]


def _same(parts: Any) -> Any:
    return parts


class _Client(Exchanging):
    def __init__(self, socket: Any, token: str | None) -> None:
        super().__init__(_in_parts())
        self._socket = socket
        self._token = token

    def path(self) -> str:
        return "tcp"

    @contextmanager
    def exchange(self, request: Request) -> Iterator[Exchange]:
        socket, head = self._socket, Head.of(request).packed(self._token)
        whole = partial(socket.recv_multipart, copy=False)

        def send(parts: Any) -> None:
            socket.send_multipart([head, *parts], copy=False)

        yield Exchange(send, whole if request.procedure == "echo" else socket.recv)


class Zmq(Contender):
    transports = ("tcp",)
    packages = ("pyzmq",)
    pipelines = frozenset(PROCEDURES)

    def viable(self, transport: str) -> str | None:
        return calls.Zmq().viable(transport)

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        where = f"tcp://{sockets.gethostbyname(host)}:{port}"
        with calls.routing(where, _Server(token).arrived, MOST_BYTES) as bound:
            yield f"{host}:{bound.rpartition(':')[2]}"

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        import zmq

        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = calls.LINGER_MS
            socket.connect(f"tcp://{address}")
            client = _Client(socket, token)
            first = Request("acknowledge", "non-serialized", "ordinary", False, ((1,),))
            with client.exchange(first) as (send, receive):
                send([b"\0"])
                if receive() == _REFUSAL:
                    raise ConnectionError(
                        f"{address} took not this token: give the same --token-file as there"
                    )
            yield client
