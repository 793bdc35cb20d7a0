# SPDX-License-Identifier: Apache-2.0
"""How buffers become messages of gRPC's, and what comes out of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from tensorwire.bench.suites.rpc.contender import ANSWER
from tensorwire.bench.suites.tf_grpc.contender import Octets, Procedure, answer, buffers, octets
from tensorwire.bench.suites.tf_grpc.payloads import Payload


@dataclass(frozen=True)
class Messages:
    """make: what the sender hands over, ahead of the calls that are timed. buffers: of what a
    receiver is handed."""

    make: Callable[[Payload], Any]
    buffers: Callable[[Any], Sequence[Octets]]
    serializer: Callable[[Any], Any] | None = None
    deserializer: Callable[[Any], Any] | None = None


Reply = Callable[..., Any]
"""Of a server, to the message that it is given; a context besides is not looked at."""


def reply(messages: Messages, procedure: Procedure, reads: bool) -> Reply:
    """The same message, or the 8 bytes of the server's answer."""
    buffers = messages.buffers

    def echo(message: Any, context: object = None) -> Any:
        answer(buffers(message), reads)
        return message

    def acknowledge(message: Any, context: object = None) -> bytes:
        return ANSWER.pack(answer(buffers(message), reads))

    return echo if procedure == "echo" else acknowledge


def joined() -> Messages:
    """Ready ``bytes``, which is all that stock gRPC takes."""
    return Messages(
        lambda payload: np.concatenate(buffers(payload)).tobytes(),
        lambda message: [octets(message)],
    )


def protobuf() -> Messages:
    """A message with a repeated field of bytes, a buffer in each."""
    kind = _payload_class()
    return Messages(
        lambda payload: kind(buffers=[buffer.tobytes() for buffer in buffers(payload)]),
        lambda message: [octets(each) for each in message.buffers],
        kind.SerializeToString,
        kind.FromString,
    )


@cache
def _payload_class() -> Any:
    """The class that protoc would generate of ``message Payload { repeated bytes buffers = 1; }``.
    Raises ImportError where protobuf is missing."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="tensorwire/bench/payload.proto", package="tensorwire.bench", syntax="proto3"
    )
    file.message_type.add(name="Payload").field.add(
        name="buffers", number=1, label=field.LABEL_REPEATED, type=field.TYPE_BYTES
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{file.package}.{file.message_type[0].name}")
    )


class Stopwatch:
    """Adds up the time that functions take, each of which one thread at a time calls."""

    def __init__(self) -> None:
        self._spent: list[list[int]] = []  # nanoseconds, of each function

    @property
    def nanoseconds(self) -> int:
        return sum(spent for (spent,) in self._spent)

    def timing(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        spent = [0]
        self._spent.append(spent)

        def timed(given: Any) -> Any:
            before = time.perf_counter_ns()
            try:
                return function(given)
            finally:
                spent[0] += time.perf_counter_ns() - before

        return timed

    def of(self, messages: Messages) -> Messages:
        """The same messages, whose serializers are timed."""
        assert messages.serializer is not None
        assert messages.deserializer is not None
        return replace(
            messages,
            serializer=self.timing(messages.serializer),
            deserializer=self.timing(messages.deserializer),
        )
