# SPDX-License-Identifier: Apache-2.0
"""Bootstrap/Open at a server: what it answers to whom, and whatever else goes on there."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import msgspec
import pytest
from tests.rpc.pairings import Local, local
from tests.rpc.service import LIMIT_SECONDS, path

import tensorwire
from tensorwire import _core
from tensorwire.observe import audit
from tensorwire.rpc import bootstrap, grpc_internals
from tensorwire.transports import names, why_not

OFFERED = [name for name in names() if why_not(name) is None]


def ask(target: str, request: bytes) -> Any:
    with grpc.insecure_channel(target) as channel:
        method: Any = channel.unary_unary(bootstrap.METHOD)
        return method(request)


def refused(target: str, request: bytes) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        ask(target, request)
    return caught.value


def test_answer() -> None:
    with local("tensorwire") as server:
        answers = [msgspec.msgpack.decode(ask(server.target, _core.hello())) for _ in range(2)]
    first, second = answers
    assert set(first) == {
        "hello",
        "instance",
        "session",
        "secret",
        "ttl",
        "connections",
        "addresses",
    }
    assert [len(first[name]) for name in ("instance", "session", "secret")] == [16, 16, 32]
    assert _core.parse_hello(first["hello"]).same_host
    assert [address.partition(":")[0] for address in first["addresses"]] == OFFERED
    assert first["addresses"] == second["addresses"]
    assert first["instance"] == second["instance"]
    assert first["session"] != second["session"]
    assert first["secret"] != second["secret"]
    assert first["ttl"] == 30


@pytest.mark.parametrize("request_", [b"", b"hello", b"\0" * 96, b"\xff" * 5000])
def test_request_that_is_no_hello(request_: bytes) -> None:
    with local("tensorwire") as server:
        error = refused(server.target, request_)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details()
        with tensorwire.insecure_channel(server.target) as channel:
            assert channel.path().transport == "shm"


def test_request_in_versions_that_the_server_does_not_speak() -> None:
    hello = bytearray(_core.hello())
    hello[8:12] = struct.pack("<HH", 60_000, 60_001)
    with local("tensorwire") as server:
        error = refused(server.target, bytes(hello))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "60000" in error.details()


def test_secure_port_mints_nothing() -> None:
    """Also when the same server has an insecure port."""
    with local("tensorwire") as server:
        credentials = grpc.local_server_credentials()
        with ThreadPoolExecutor(2) as pool:
            both = tensorwire.server(pool)
            both.add_insecure_port("127.0.0.1:0")
            secure = both.add_secure_port("127.0.0.1:0", credentials)
            both.start()
            try:
                with grpc.secure_channel(
                    f"127.0.0.1:{secure}", grpc.local_channel_credentials()
                ) as channel:
                    method: Any = channel.unary_unary(bootstrap.METHOD)
                    with pytest.raises(grpc.RpcError) as caught:
                        method(_core.hello())
            finally:
                both.stop(None)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "secure" in error.details()
        assert server.server.paths() == []


def test_a_secret_opens_one_link() -> None:
    with local("tensorwire") as server:
        answer = msgspec.msgpack.decode(ask(server.target, _core.hello()))
        assert answer["connections"] == 1

        def connect(name: str) -> _core.Peer:
            address = next(a for a in answer["addresses"] if a.startswith(f"{name}:"))
            return _core.connect(
                address,
                answer["session"],
                answer["secret"],
                answer["instance"],
                answer["hello"],
                LIMIT_SECONDS,
            )

        link = connect("tcp")
        for name in ("tcp", "shm"):
            with pytest.raises(_core.StatusError) as caught:
                connect(name)
            assert caught.value.code == grpc.StatusCode.UNAUTHENTICATED.value[0]
        assert link.alive
        link.close()


def test_whoever_asks_for_invitations_without_end_shuts_nobody_out() -> None:
    """Even one from the same address, which is the nearest that it can get."""
    with local("tensorwire") as server:
        core = server.server._core
        evicted = audit.counts()["eviction", "session"]
        for _ in range(5000):
            core.admit(_core.hello(), 1, 30.0, "127.0.0.1")
        assert audit.counts()["eviction", "session"] >= evicted + 5000 - 4096
        for transport in OFFERED:
            with tensorwire.insecure_channel(
                server.target,
                transport=transport,  # type: ignore[arg-type]
            ) as channel:
                assert channel.unary_unary(path("echo"))(b"x") == b"x"


def test_open_is_answered_while_all_threads_are_busy() -> None:
    with (
        local("tensorwire", workers=1) as server,
        grpc.insecure_channel(server.target) as stock,
        tensorwire.insecure_channel(server.target) as channel,
    ):
        pass_gate: Any = stock.unary_unary(path("pass_gate"))
        busy = pass_gate.future(b"gate")
        server.service.diary.read("gate started")
        assert channel.path().transport == "shm"
        server.service.gates["gate"].set()
        assert busy.result(LIMIT_SECONDS) == b"passed"


class Around(grpc.ServerInterceptor):
    """As tools do that wrap each handler."""

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: handler.unary_unary(request, context),
            handler.request_deserializer,
            handler.response_serializer,
        )


@pytest.fixture(params=["ours", "wrapped", "unknown grpcio"])
def answering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    """A server. Of a grpcio that it does not know, threads wait for the requests of Open."""
    if request.param == "unknown grpcio":
        monkeypatch.setattr(grpc_internals, "_RESPOND", None)
    interceptors = [Around()] if request.param == "wrapped" else []
    with local("tensorwire", interceptors=interceptors) as server:
        yield server


def test_open_is_answered_whoever_stands_around_it(answering: Local) -> None:
    for _ in range(3):
        assert "addresses" in msgspec.msgpack.decode(ask(answering.target, _core.hello()))
    assert refused(answering.target, b"no hello").code() is grpc.StatusCode.INVALID_ARGUMENT


@contextlib.contextmanager
def half_opens(target: str, count: int) -> Iterator[list[Any]]:
    """Calls of Open whose request does not come."""
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        yield from ()

    with grpc.insecure_channel(target) as channel:
        begin: Any = channel.stream_unary(bootstrap.METHOD)
        calls = [begin.future(nothing()) for _ in range(count)]
        try:
            yield calls
        finally:
            for call in calls:
                call.cancel()
            over.set()


@pytest.mark.parametrize("answering", ["ours", "wrapped"], indirect=True)
def test_an_open_whose_request_does_not_come_keeps_nobody_out(answering: Local) -> None:
    with (
        half_opens(answering.target, 20) as calls,
        grpc.insecure_channel(answering.target) as stock,
    ):
        method: Any = stock.unary_unary(bootstrap.METHOD)
        for _ in range(2):
            assert method(_core.hello(), timeout=LIMIT_SECONDS)
            assert not any(call.done() for call in calls)
            for call in calls[::2]:  # nor do those that are given up
                call.cancel()
            calls = calls[1::2]


def test_an_open_without_a_request_is_refused_as_any_call(answering: Local) -> None:
    ends = []
    with grpc.insecure_channel(answering.target) as stock:
        for name in (bootstrap.METHOD, path("echo")):
            with pytest.raises(grpc.RpcError) as caught:
                stock.stream_unary(name)(iter(()), timeout=LIMIT_SECONDS)
            error: Any = caught.value
            ends.append((error.code(), error.details().replace(name, "")))
    assert ends[0] == ends[1]


def test_open_starts_no_thread() -> None:
    with local("tensorwire") as server, grpc.insecure_channel(server.target) as stock:
        method: Any = stock.unary_unary(bootstrap.METHOD)
        method(_core.hello())
        before = set(threading.enumerate())
        futures = [method.future(_core.hello()) for _ in range(50)]
        assert all(future.result(LIMIT_SECONDS) for future in futures)
        started = {thread.name for thread in set(threading.enumerate()) - before}
        assert not {name for name in started if name.startswith("tensorwire")}
