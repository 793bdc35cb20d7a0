# SPDX-License-Identifier: Apache-2.0
"""Concurrency and message size: limits that hold over all transports together."""

from __future__ import annotations

import queue
import re
from typing import Any

import grpc
import pytest
from tests.rpc.pairings import DATA_PLANE, PAIRINGS, ROOT, Pairing, local
from tests.rpc.service import LIMIT_SECONDS, path

import tensorwire
from tensorwire.rpc import options


def code_of(call: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code(), error.details()


EXHAUSTED = (grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")


def admitted(method: Any, request: bytes) -> Any:
    """A call may be over at the client a little before the server stops counting it."""
    while True:
        call = method.future(request)
        if call.exception(LIMIT_SECONDS) is None or (call.code(), call.details()) != EXHAUSTED:
            return call.result()


@pytest.mark.parametrize("workers", [1, 8])
def test_maximum_concurrent_rpcs(pairing: Pairing, workers: int) -> None:
    """With one worker, the second call waits for it and counts all the same."""
    with (
        local(pairing.server, maximum_concurrent_rpcs=2, workers=workers) as server,
        pairing.channel(server.target) as channel,
    ):
        pass_gate = channel.unary_unary(path("pass_gate"))
        first = pass_gate.future(b"gate")
        server.service.diary.read("gate started")
        others = [pass_gate.future(b"gate") for _ in range(3)]
        ended: queue.Queue[Any] = queue.Queue()
        for call in others:
            call.add_done_callback(ended.put)
        refused = [ended.get(timeout=LIMIT_SECONDS) for _ in range(2)]
        assert [(call.code(), call.details()) for call in refused] == [EXHAUSTED] * 2
        assert code_of(lambda: list(channel.unary_stream(path("count"))(b"1"))) == EXHAUSTED
        server.service.gates["gate"].set()
        (second,) = (call for call in others if call not in refused)
        assert first.result(LIMIT_SECONDS) == second.result(LIMIT_SECONDS) == b"passed"
        echo = channel.unary_unary(path("echo"))
        assert admitted(echo, b"again") == b"again"


@pytest.mark.parametrize("first", ["grpc", "shm"])
def test_both_planes_count_together(first: str) -> None:
    second = {"grpc": "shm", "shm": "grpc"}[first]
    with local("tensorwire", maximum_concurrent_rpcs=1) as server:
        channels: dict[str, Any] = {
            name: tensorwire.insecure_channel(server.target, transport=name)  # type: ignore[arg-type]
            for name in (first, second)
        }
        with channels[first] as one, channels[second] as other:
            blocked = one.unary_unary(path("pass_gate")).future(b"gate")
            server.service.diary.read("gate started")
            assert code_of(lambda: other.unary_unary(path("echo"))(b"x")) == EXHAUSTED
            server.service.gates["gate"].set()
            assert blocked.result(LIMIT_SECONDS) == b"passed"
            assert admitted(other.unary_unary(path("echo")), b"x") == b"x"


LARGE = 6_000_000


ANY_SIZE = ("grpc.max_receive_message_length", -1)


@pytest.mark.parametrize("pairing", PAIRINGS[3:], ids=str)
def test_messages_beyond_4_mb_need_no_option_at_the_client(pairing: Pairing) -> None:
    given = [ANY_SIZE] if pairing.transport == "grpc" else []
    with (
        local(pairing.server, options=given) as server,
        pairing.channel(server.target) as channel,
    ):
        assert channel.unary_unary(path("length"))(bytes(LARGE)) == str(LARGE).encode()
        assert len(channel.unary_unary(path("zeros"))(str(LARGE).encode())) == LARGE


@pytest.mark.parametrize("pairing", [p for p in PAIRINGS if p.transport == "grpc"], ids=str)
def test_a_port_accepts_4_mb_by_grpc_unless_told_otherwise(pairing: Pairing) -> None:
    with local(pairing.server) as server, pairing.channel(server.target) as channel:
        length = channel.unary_unary(path("length"))
        assert code_of(lambda: length(bytes(LARGE)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    with (
        local(pairing.server, options=[ANY_SIZE]) as server,
        pairing.channel(server.target) as channel,
    ):
        assert channel.unary_unary(path("length"))(bytes(LARGE)) == str(LARGE).encode()


LIMITED: dict[str, Any] = {"options": [("grpc.max_receive_message_length", 1_000_000)]}


def test_receive_limit_of_the_server(pairing: Pairing) -> None:
    with local(pairing.server, **LIMITED) as server, pairing.channel(server.target) as channel:
        length = channel.unary_unary(path("length"))
        assert length(bytes(900_000)) == b"900000"
        assert code_of(lambda: length(bytes(LARGE)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert length(bytes(900_000)) == b"900000"


def test_receive_limit_of_the_client(pairing: Pairing) -> None:
    with local(pairing.server) as server, pairing.channel(server.target, **LIMITED) as channel:
        zeros = channel.unary_unary(path("zeros"))
        assert len(zeros(b"900000")) == 900_000
        assert code_of(lambda: zeros(b"3000000"))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(zeros(b"900000")) == 900_000


SENDS_LITTLE: dict[str, Any] = {"options": [("grpc.max_send_message_length", 1000)]}
TOO_MUCH, LITTLE = bytes(1001), bytes(1000)


def test_send_limit_of_the_client(pairing: Pairing) -> None:
    with local(pairing.server) as server, pairing.channel(server.target, **SENDS_LITTLE) as channel:
        length, drain = channel.unary_unary(path("length")), channel.stream_unary(path("drain"))
        for call in (
            lambda: length(TOO_MUCH),
            lambda: length.with_call(TOO_MUCH),
            lambda: length.future(TOO_MUCH).result(LIMIT_SECONDS),
            lambda: list(channel.unary_stream(path("count"))(TOO_MUCH)),
            lambda: drain(iter([LITTLE, TOO_MUCH])),
            lambda: list(channel.stream_stream(path("chat"))(iter([TOO_MUCH]))),
        ):
            code, details = code_of(call)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "Sent message larger than max (1001 vs. 1000)" in details
        assert length(LITTLE) == b"1000"
        assert drain(iter([LITTLE, LITTLE])) == b"2"


def test_send_limit_of_the_server(pairing: Pairing) -> None:
    with local(pairing.server, **SENDS_LITTLE) as server, pairing.channel(server.target) as channel:
        zeros = channel.unary_unary(path("zeros"))
        chat = channel.stream_stream(path("chat"))
        for call in (lambda: zeros(b"1001"), lambda: list(chat(iter([LITTLE, TOO_MUCH])))):
            code, details = code_of(call)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "Sent message larger than max (1001 vs. 1000)" in details
        assert zeros(b"1000") == LITTLE
        assert list(chat(iter([LITTLE]))) == [LITTLE]


def test_metadata_limit_of_the_server(pairing: Pairing) -> None:
    given = [("grpc.max_metadata_size", 2000), ("grpc.absolute_max_metadata_size", 2000)]
    with (
        local(pairing.server, options=given) as server,
        pairing.channel(server.target) as channel,
    ):
        echo = channel.unary_unary(path("echo"))
        assert echo(b"x", metadata=[("x-little", "x" * 500)]) == b"x"
        much = [("x-much", "x" * 2000)]
        code, _ = code_of(lambda: echo(b"x", metadata=much))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert echo(b"x") == b"x"


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "tell", options.Once().tell)


OPTIONS: Any = [
    ("grpc.max_connection_age_ms", 1000),
    ("grpc.keepalive_time_ms", 1000),
    (b"grpc.max_concurrent_streams", 7),
    ("grpc.max_metadata_size", 9000),
    ("grpc.something_new", 1),
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.max_send_message_length", 1 << 20),
]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        str(record.args[0])
        for record in caplog.records
        if "no effect on the data plane" in record.message and isinstance(record.args, tuple)
    ]


@pytest.mark.usefixtures("untold")
def test_what_has_no_effect_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with local("tensorwire", options=OPTIONS) as server:
        expected = [name for name, _ in options.named(OPTIONS[:5]) if "metadata" not in name]
        assert told(caplog) == expected
        for _ in range(2):
            with tensorwire.insecure_channel(server.target, OPTIONS):
                assert told(caplog) == [*expected, "grpc.max_metadata_size"]


@pytest.mark.usefixtures("untold")
def test_nothing_is_named_where_calls_stay_on_grpc(caplog: pytest.LogCaptureFixture) -> None:
    with local("tensorwire", options=OPTIONS, transport="grpc") as server:
        with tensorwire.insecure_channel(server.target, OPTIONS, transport="grpc"):
            pass
        policy = [*OPTIONS, ("grpc.lb_policy_name", "round_robin")]
        with tensorwire.insecure_channel(server.target, policy):
            pass
    assert told(caplog) == []


def test_every_option_is_in_the_migration_table() -> None:
    page = (ROOT / "docs" / "migration.md").read_text()
    names = (*options.HONOURED, *options.HONOURED_BY_SERVERS, *options.NO_EFFECT)
    assert [name for name in (*names, *options.CONNECTION) if f"`{name}" not in page] == []


@pytest.mark.parametrize("part", [grpc.Channel, grpc.Server, grpc.ServicerContext, grpc.Future])
def test_the_interface_of_grpcio_is_in_the_migration_table(part: type) -> None:
    page = (ROOT / "docs" / "migration.md").read_text()
    names = [name for name in dir(part) if not name.startswith("_")]
    assert [name for name in names if not re.search(rf"`{name}\b", page)] == []


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_one_worker_serves_clients_in_turn(pairing: Pairing) -> None:
    """A busy client does not keep the only thread for itself."""
    with (
        local("tensorwire", workers=1) as server,
        pairing.channel(server.target) as one,
        pairing.channel(server.target) as other,
    ):
        futures = [
            channel.unary_unary(path("echo")).future(str(n).encode())
            for n in range(200)
            for channel in (one, other)
        ]
        for n, future in enumerate(futures):
            assert future.result(LIMIT_SECONDS) == str(n // 2).encode()
