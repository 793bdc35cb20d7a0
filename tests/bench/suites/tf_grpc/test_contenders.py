# SPDX-License-Identifier: Apache-2.0
"""Each contender gives right answers, in each way of calling it, and only to who shows its token.

Server and client are in one process, and connected as those of a run are."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.bench.harness.control import Control
from tensorwire.bench.suites.rpc.messages import why_no_protobuf
from tensorwire.bench.suites.tf_grpc.agent import _load
from tensorwire.bench.suites.tf_grpc.contender import (
    MODES,
    Contender,
    Octets,
    Procedure,
    Request,
    answer,
    buffers,
    expected,
    find,
)
from tensorwire.bench.suites.tf_grpc.load import Turns, Window
from tensorwire.bench.suites.tf_grpc.messages import Messages, protobuf
from tensorwire.bench.suites.tf_grpc.payloads import MOST_BYTES
from tensorwire.bench.suites.tf_grpc.ranks import Attending, Peer, connected, listening
from tensorwire.bench.suites.tf_grpc.reads import Memory, ReadingClient, attend

HOST = "127.0.0.1"
TOKEN = "a-token-of-some-length"
PAYLOADS = ((10, 70_000, 1), (3,), (1 << 20, 10, 10 << 10))
WAYS = [
    *(("grpcio", "grpc"), ("tensorwire", "shm"), ("tensorwire", "tcp"), ("sockets", "tcp")),
    *(("memory", "memory"), ("zmq", "tcp"), ("flight", "tcp"), ("grpc-aio", "grpc")),
    *(("gloo", "tcp"), ("torch-rpc", "tcp"), ("ucxx", "tcp"), ("grpcio-unix", "unix")),
    *(("nixl", "shm"), ("nixl", "tcp")),
]
"""MPI has processes of its own in test_suite.py: what it loads excludes ucxx. So has Mooncake,
which needs a network of its own."""


class Nobody(Peer):
    def send(self, arrays: object) -> None:
        raise AssertionError

    def receiving(self, arrays: object) -> Callable[[], object]:
        raise AssertionError


def installed(name: str) -> Contender:
    contender = find(name)
    if (reason := contender.viable(contender.transports[0])) is not None:
        pytest.skip(reason)
    return contender


@pytest.mark.parametrize(("name", "transport"), WAYS)
def test_answers_are_right(name: str, transport: str, tmp_path: Path) -> None:
    contender = installed(name)
    modes = [each for each in MODES if each in contender.modes]
    if why_no_protobuf() is not None:
        modes.remove("serialized")
    with (
        contender.joined(transport, str(tmp_path), 0),
        contender.serve(transport, HOST, 0, TOKEN) as address,
        contender.connect(transport, address, TOKEN) as client,
    ):
        assert client.path() == transport
        for procedure, mode, origin, reads in itertools.product(
            ("echo", "acknowledge"), modes, sorted(contender.origins), (False, True)
        ):
            request = Request(procedure, mode, origin, reads, PAYLOADS)  # type: ignore[arg-type]
            before = client.serialization_ns()
            with client.calls(request) as calls:
                assert [call() for call in calls] == expected(contender, request)
            assert (client.serialization_ns() > before) == (mode == "serialized")
            if procedure not in contender.pipelines:
                continue
            with client.begun(replace(request, window=9)) as begins:
                under_way = [begin() for begin in 3 * list(begins)]
                assert [end() for end in under_way] == 3 * expected(contender, request)


@pytest.mark.parametrize("name", ["grpcio", "grpcio-unix", "grpc-aio", "tensorwire"])
@pytest.mark.parametrize("token", ["another-token-of-some-length", None])
def test_calls_without_the_token_are_refused(name: str, token: str | None) -> None:
    contender = find(name)
    transport = "tcp" if name == "tensorwire" else contender.transports[0]
    with (
        contender.serve(transport, HOST, 0, TOKEN) as address,
        pytest.raises(grpc.RpcError, match="not the server's token"),
        contender.connect(transport, address, token) as client,
        client.calls(Request("echo", MODES[0], "ordinary", False, ((8,),))) as (call,),
    ):
        call()


@pytest.mark.parametrize("name", ["sockets", "zmq"])
def test_those_without_metadata_ask_for_the_token_first(name: str) -> None:
    contender = installed(name)
    with (
        contender.serve("tcp", HOST, 0, TOKEN) as address,
        pytest.raises(ConnectionError, match="took not this token"),
        contender.connect("tcp", address, "another-token-of-some-length"),
    ):
        pass


def test_flight_exchanges_nothing_without_the_token() -> None:
    contender = installed("flight")
    with (
        contender.serve("tcp", HOST, 0, TOKEN) as address,
        contender.connect("tcp", address, None) as client,
        pytest.raises(Exception, match="not the server's token"),
        client.calls(Request("echo", MODES[0], "ordinary", False, ((8,),))) as (call,),
    ):
        call()


@pytest.mark.parametrize(
    ("name", "package"),
    [
        *(("zmq", "pyzmq"), ("flight", "pyarrow"), ("gloo", "torch")),
        *(("nixl", "nixl"), ("mooncake", "mooncake-transfer-engine-non-cuda"), ("ray", "ray")),
    ],
)
def test_what_is_missing_says_how_to_get_it(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"tensorwire.bench.contenders.rpc.{name}.find_spec", lambda module: None)
    assert f"pip install {package}" in (find(name).viable("tcp") or "")


@pytest.mark.parametrize("size", [-1, MOST_BYTES + 1])
def test_ranks_take_no_payload_of_that_size(size: int) -> None:
    def talk(control: Control) -> None:
        Attending(Nobody(), Request("echo", MODES[0], "ordinary", False, ((size,),)))

    with listening(HOST, 0, talk) as address, connected(address) as control:
        assert "payloads of more than" in control.receive()["error"]


class Shared(Memory):
    """Of this process, in which both ends are."""

    ends: ClassVar[dict[int, Shared]] = {}
    right = True

    def __init__(self, arrays: Sequence[Octets], control: Control) -> None:
        self.arrays = arrays
        self.control = control
        self.other = self
        self.released = False
        self.ends[id(self)] = self

    def about(self) -> dict[str, Any]:
        return {"end": id(self)}

    def meet(self, about: Mapping[str, Any]) -> None:
        self.other = self.ends[about["end"]]

    def reading(self, own: slice, others: slice) -> Callable[[], object]:
        pairs = zip(self.arrays[own], self.other.arrays[others], strict=True)
        return partial(self.copy, list(pairs))

    def copy(self, pairs: Sequence[tuple[Octets, Octets]]) -> None:
        for here, there in pairs:
            here[:] = there if self.right else 0

    def tell(self, word: bytes) -> None:
        self.control.connection.sendall(word)

    def heard(self) -> bytes:
        return self.control.lines.read(8)

    def release(self) -> None:
        self.released = True


@pytest.mark.parametrize("procedure", ["echo", "acknowledge"])
@pytest.mark.parametrize("reads", [False, True])
def test_payloads_are_read_by_the_other_end(
    procedure: Procedure, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shared, "ends", {})
    request = Request(procedure, MODES[0], "ordinary", reads, PAYLOADS)
    right = expected(find("memory"), request)

    def talk(control: Control) -> None:
        attend(control, Shared)

    with listening(HOST, 0, talk) as address, connected(address) as control:
        client = ReadingClient(Shared, control, "here", "")
        for _ in range(2):
            with client.calls(request) as calls:
                assert [call() for call in calls] == right
        if procedure == "acknowledge":
            with client.begun(replace(request, window=9)) as begins:
                under_way = [begin() for begin in 3 * list(begins)]
                assert [end() for end in under_way] == 3 * right
        monkeypatch.setattr(Shared, "right", False)
        with client.calls(request) as calls:
            assert ([call() for call in calls] == right) == (not reads)
    assert all(end.released for end in Shared.ends.values())


@pytest.mark.parametrize("size", [-1, MOST_BYTES + 1])
def test_what_is_read_is_no_larger(size: int) -> None:
    with (
        listening(HOST, 0, lambda control: attend(control, Shared)) as address,
        connected(address) as control,
    ):
        request = Request("echo", MODES[0], "ordinary", False, ((size,),))
        control.send({"request": request.to_json(), "about": {}})
        assert "payloads of more than" in control.receive()["error"]


@pytest.mark.parametrize("size", [-1, MOST_BYTES + 1])
def test_sockets_take_no_payload_of_that_size(size: int) -> None:
    with find("sockets").serve("tcp", HOST, 0, None) as address:
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            from tensorwire.bench.contenders.tf_grpc.sockets import _digest

            connection.sendall(_digest(None))
            assert connection.recv(1) == b"\1"
            connection.sendall(struct.pack("<??q", False, False, size))
            assert connection.recv(1) == b"", "it hangs up"


def test_sockets_gather_more_buffers_than_a_system_call_takes() -> None:
    contender = find("sockets")
    request = Request("echo", MODES[0], "ordinary", True, ((3,) * 5000,))
    with (
        contender.serve("tcp", HOST, 0, None) as address,
        contender.connect("tcp", address, None) as client,
        client.calls(request) as (call,),
    ):
        assert [call()] == expected(contender, request)


@pytest.mark.parametrize(("name", "kind"), [("", Window), ("-without-pipelining", Turns)])
def test_without_pipelining_calls_have_no_window(name: str, kind: type) -> None:
    contender = find(f"tensorwire{name}")
    request = Request("acknowledge", MODES[0], "ordinary", True, PAYLOADS, window=4)
    with (
        contender.serve("shm", HOST, 0, None) as address,
        contender.connect("shm", address, None) as client,
        ExitStack() as stack,
    ):
        load = _load(stack, contender, [client], request)
        assert type(load) is kind
        assert load.timed(0, 0.001, 0).durations
        assert ("one call" in client.note()) == (kind is Turns)


payloads = st.lists(st.integers(1, 300), min_size=1, max_size=8).map(tuple)


@given(payloads, st.data())
def test_an_answer_depends_on_each_byte_and_on_the_order(
    payload: tuple[int, ...], data: st.DataObject
) -> None:
    sent = buffers(payload)
    right = answer(sent, True)
    assert answer(buffers(payload), True) == right
    place = data.draw(st.integers(0, len(payload) - 1))
    byte = data.draw(st.integers(0, payload[place] - 1))
    sent[place][byte] ^= 1
    assert answer(sent, True) != right
    sent[place][byte] ^= 1
    if len(set(payload)) > 1:
        assert answer(sent[::-1], True) != right or payload == payload[::-1]
    assert answer(sent, False) == sum(payload)


@pytest.mark.skipif(why_no_protobuf() is not None, reason="needs protobuf")
@given(payloads)
def test_serialized_buffers_come_out_as_they_went_in(payload: tuple[int, ...]) -> None:
    messages: Messages = protobuf()
    assert messages.serializer is not None
    assert messages.deserializer is not None
    received = messages.deserializer(messages.serializer(messages.make(payload)))
    found = messages.buffers(received)
    assert len(found) == len(payload)
    for sent, back in zip(buffers(payload), found, strict=True):
        assert np.array_equal(sent, back)
