# SPDX-License-Identifier: Apache-2.0
"""Clients of libraries that know messages and no calls: one goes there and one comes back, in
order."""

from __future__ import annotations

import abc
import hashlib
import hmac
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NamedTuple

from tensorwire.bench.suites.rpc.contender import ANSWER
from tensorwire.bench.suites.tf_grpc.contender import (
    MODES,
    PROCEDURES,
    Begin,
    Call,
    Client,
    Procedure,
    Request,
    answer,
)
from tensorwire.bench.suites.tf_grpc.messages import Messages, Stopwatch
from tensorwire.bench.suites.tf_grpc.payloads import Payload

_HEAD: Final = struct.Struct("<32sBB?")


def _digest(token: str | None) -> bytes:
    return hashlib.sha256((token or "").encode()).digest()


class Head(NamedTuple):
    """What a server has to know of a message."""

    procedure: Procedure
    mode: str
    reads: bool

    @classmethod
    def of(cls, request: Request) -> Head:
        return cls(request.procedure, request.mode, request.reads)

    def packed(self, token: str | None) -> bytes:
        """With the proof of having the token, which does not tell it."""
        places = PROCEDURES.index(self.procedure), MODES.index(self.mode)
        return _HEAD.pack(_digest(token), *places, self.reads)

    @classmethod
    def shown(cls, packed: bytes, token: str | None) -> Head | None:
        """None for who does not have the token."""
        if len(packed) != _HEAD.size:
            return None
        digest, procedure, mode, reads = _HEAD.unpack(packed)
        if not hmac.compare_digest(digest, _digest(token)):
            return None
        return cls(PROCEDURES[procedure], MODES[mode], reads)


class Exchange(NamedTuple):
    """send: hands over what the serializer, if there is one, has made of a message. receive: waits
    for the reply to the first message that has none yet: of an echo the same, else 8 bytes."""

    send: Callable[[Any], object]
    receive: Callable[[], Any]


class Exchanging(Client):
    """messages: by mode."""

    def __init__(self, messages: Mapping[str, Messages]) -> None:
        self._messages = messages
        self._stopwatch = Stopwatch()

    @abc.abstractmethod
    def exchange(self, request: Request) -> AbstractContextManager[Exchange]: ...

    def serialization_ns(self) -> int:
        return self._stopwatch.nanoseconds

    @contextmanager
    def calls(self, request: Request) -> Iterator[Sequence[Call]]:
        with self.begun(request) as begins:
            yield [_whole(begin) for begin in begins]

    @contextmanager
    def begun(self, request: Request) -> Iterator[Sequence[Begin]]:
        messages = self._messages[request.mode]
        if messages.serializer is not None:
            messages = self._stopwatch.of(messages)
        with self.exchange(request) as exchange:
            end = _end(messages, exchange, request)

            def begin_of(payload: Payload) -> Begin:
                message, pack, send = messages.make(payload), messages.serializer, exchange.send

                def begin() -> Call:
                    send(message if pack is None else pack(message))
                    return end

                return begin

            begins = {payload: begin_of(payload) for payload in set(request.payloads)}
            yield [begins[payload] for payload in request.payloads]


def _whole(begin: Begin) -> Call:
    return lambda: begin()()


def _end(messages: Messages, exchange: Exchange, request: Request) -> Call:
    receive, unpack, reads = exchange.receive, messages.deserializer, request.reads

    def echoed() -> int:
        received = receive()
        return answer(messages.buffers(unpack(received) if unpack else received), reads)

    def acknowledged() -> int:
        return int(ANSWER.unpack(receive())[0])

    return echoed if request.procedure == "echo" else acknowledged
