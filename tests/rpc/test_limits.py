"""Concurrency and message size: limits that hold over all transports together."""

from __future__ import annotations

import queue
from typing import Any

import grpc
import pytest
from tests.rpc.pairings import DATA_PLANE, PAIRINGS, Pairing, local
from tests.rpc.service import LIMIT_SECONDS, path


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
    import tensorwire

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


@pytest.mark.parametrize("pairing", PAIRINGS[3:], ids=str)
def test_messages_beyond_4_mb_need_no_option_between_our_ends(pairing: Pairing) -> None:
    with local(pairing.server) as server, pairing.channel(server.target) as channel:
        assert channel.unary_unary(path("length"))(bytes(LARGE)) == str(LARGE).encode()
        assert len(channel.unary_unary(path("zeros"))(str(LARGE).encode())) == LARGE


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
