# SPDX-License-Identifier: Apache-2.0
"""Any bytes are a message, or an error that their reader expects: what decodes what other processes
have sent, or put into a store. (Tensors, plans, handles, queues and protobuf have tests of their
own, and so do the C++ decoders: their fuzzers.)"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwire.collective import GroupError, stores
from tensorwire.collective.agreement import Record, Value
from tensorwire.collective.regroup import _Asking, _Epoch
from tensorwire.graph import links
from tensorwire.horovod import trees
from tensorwire.horovod.negotiation import Negotiator, Request
from tensorwire.malformed import MALFORMED
from tensorwire.remote import Handle, messages
from tensorwire.rpc import bootstrap
from tensorwire.tensors import DecodeError
from tensorwire.weights import wire
from tensorwire.weights.planning import Shard


class AbortedError(Exception):
    """What a server's context raises."""


class Kept:
    """A store that has these bytes at each key, and a channel that answers so."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def get(self, key: str, timeout: float) -> bytes:
        return self._data

    def set(self, key: str, value: bytes) -> None:
        raise NotImplementedError

    def unary_unary(self, *_: object) -> Callable[..., bytes]:
        return lambda *_, **__: self._data


class Context:
    def abort(self, code: object, details: str) -> NoReturn:
        raise AbortedError(details)


class Decoder(NamedTuple):
    read: Callable[[bytes], object]
    raises: tuple[type[Exception], ...]
    good: bytes


def _weights(good: Any) -> Decoder:
    kind = type(good)
    encoded = bytes(wire.encode(good))
    return Decoder(
        lambda data: wire.decode(np.frombuffer(data, np.uint8), kind), (DecodeError,), encoded
    )


def _remote(good: Any) -> Decoder:
    kind = type(good)
    return Decoder(lambda data: messages.decode(data, kind), (DecodeError,), messages.encode(good))


def _link(good: Any) -> Decoder:
    decoder = links._decoders[type(good)]
    return Decoder(decoder.decode, MALFORMED, msgspec.msgpack.encode(good))


def _regrouping(good: Any) -> Decoder:
    def read(data: bytes) -> object:
        return _Epoch(Kept(data), 1)._read("key", type(good))

    return Decoder(read, (GroupError,), msgspec.msgpack.encode(good))


ID: Final = bytes(16)
HANDLE: Final = Handle(ID, 7, 64, (3, 4), (16, 4), "float32")
OPENED: Final = messages.Opened(HANDLE, 1, 2, 3, 4)
SHARD: Final = Shard((0,), (4,), (4,), "float32")
SLICE: Final = wire.Slice("a", 0, (0,), (4,))
ANSWER: Final = bootstrap.Answer(bytes(128), ID, ID, bytes(32), 30.0, 1, ["tcp:127.0.0.1:1"])
VALUE: Final = Value((0, 2), ("token",))

DECODERS: Final = {
    "weights, description": _weights(wire.Description(ID, False, {"a": [SHARD]})),
    "weights, agreement": _weights(wire.Agreement(ID, ID, [SLICE], True, ID)),
    "weights, pull": _weights(wire.Pull(ID, 1, 2, 3, 4, True)),
    "weights, pulled": _weights(wire.Pulled(1, 2, 3, [0], [(0, 4)], [7])),
    "weights, state": _weights(wire.State(ID, 1)),
    "remote, greeting": _remote(messages.Greeting(ID, 1)),
    "remote, open": _remote(messages.Open("name", HANDLE)),
    "remote, allocate": _remote(messages.Allocate((3, 4), "float32", "name", 1)),
    "remote, opened": _remote(OPENED),
    "remote, close": _remote(messages.Close(1, 2)),
    "remote, attach": _remote(messages.Attach("name", 1)),
    "remote, attached": _remote(messages.Attached(OPENED, (3, None), "float32", 48, 1, 0)),
    "remote, detach": _remote(messages.Detach("name", 1)),
    "remote, notice": _remote(messages.Notice((3, 4), 1)),
    "graph, address": _link(links._Address("target", "digest", ID)),
    "graph, hello": _link(links._Hello("machine", ID)),
    "graph, bye": _link(links._Bye(3, "error", "machine")),
    "regroup, record": _regrouping(Record(3, 2, VALUE)),
    "regroup, value": _regrouping(VALUE),
    "regroup, asking": _regrouping(_Asking("token", 3)),
    "rpc, answer": Decoder(
        lambda data: bootstrap.ask(Kept(data), 1.0, None),  # type: ignore[arg-type]
        (bootstrap.OpenError,),
        msgspec.msgpack.encode(ANSWER),
    ),
    "horovod, requests": Decoder(
        lambda data: Negotiator(0, 2).take([data]),
        MALFORMED,
        msgspec.msgpack.encode((Request("allreduce", "name", 0, (("float32", (3,)),), "sum"),)),
    ),
    "horovod, object": Decoder(
        trees.decode, (ValueError,), trees.encode({"a": [1, (2.5, "text")], "b": np.arange(3)})
    ),
    "store, set": Decoder(
        lambda data: stores._Service("").set(data, Context()),  # type: ignore[arg-type]
        (AbortedError,),
        (3).to_bytes(4, "little") + b"keyvalue",
    ),
    "store, get": Decoder(
        lambda data: stores._Service("").get(data, Context()),  # type: ignore[arg-type]
        (AbortedError,),
        b"key",
    ),
}


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=50)
@given(data=st.data())
def test_any_bytes_are_a_message_or_refused(name: str, data: st.DataObject) -> None:
    decoder = DECODERS[name]
    raw = bytearray(decoder.good)
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    with suppress(*decoder.raises):
        decoder.read(bytes(raw))
    with suppress(*decoder.raises):
        decoder.read(data.draw(st.binary(max_size=60)))


@pytest.mark.parametrize("name", DECODERS)
def test_each_byte_is_looked_at(name: str) -> None:
    """What is no text, what is cut short, and what is nested too deep."""
    decoder = DECODERS[name]
    decoder.read(decoder.good)
    deep = b"\x91" * 3000 + b"\xc0"
    for at, byte in enumerate(decoder.good):
        for wrong in (
            decoder.good[:at],
            decoder.good[:at] + b"\xff" + decoder.good[at + 1 :],
            decoder.good[:at] + deep + decoder.good[at + 1 :],
            decoder.good[:at] + bytes([byte ^ 1]) + decoder.good[at + 1 :],
        ):
            with suppress(*decoder.raises):
                decoder.read(wrong)
    for wrong in (b"\x81\xa1x" + deep, deep):
        with suppress(*decoder.raises):
            decoder.read(wrong)
