# SPDX-License-Identifier: Apache-2.0
"""Start, stop, close, loss and return of servers and channels."""

from __future__ import annotations

import gc
import os
import queue
import socket
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import grpc
import pytest
from tests.pausing import paused
from tests.rpc import channels
from tests.rpc.pairings import DATA_PLANE, Pairing, local, process
from tests.rpc.peer import make_server
from tests.rpc.service import LIMIT_SECONDS, Service, path

import tensorwire
from tensorwire.rpc import registry


def echo(channel: Any, **options: Any) -> Any:
    return channel.unary_unary(path("echo"))(b"x", **options)


def code_of(call: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code()


# ------------------------------------------------------------------------------------- stopping


def test_stop_without_grace_cancels(pairing: Pairing) -> None:
    with local(pairing.server) as server, pairing.channel(server.target) as channel:
        future = channel.unary_unary(path("wait")).future(b"it")
        server.service.diary.read("it started")
        stopped = server.server.stop(None)
        assert stopped.is_set()
        assert not server.server.wait_for_termination(LIMIT_SECONDS)
        assert future.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        assert code_of(lambda: echo(channel)) is grpc.StatusCode.UNAVAILABLE


def test_grace_lets_calls_finish(pairing: Pairing) -> None:
    with local(pairing.server) as server, pairing.channel(server.target) as channel:
        future = channel.unary_unary(path("pass_gate")).future(b"gate")
        server.service.diary.read("gate started")
        stopped = server.server.stop(1000)
        assert not stopped.is_set()
        assert server.server.wait_for_termination(0.01)
        assert code_of(lambda: echo(channel, timeout=5)) in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,
        )
        assert not future.done()
        server.service.gates["gate"].set()
        assert future.result(LIMIT_SECONDS) == b"passed"
        assert stopped.wait(LIMIT_SECONDS)
        assert not server.server.wait_for_termination()


def test_grace_ends(pairing: Pairing) -> None:
    with local(pairing.server) as server, pairing.channel(server.target) as channel:
        future = channel.unary_unary(path("wait")).future(b"it")
        server.service.diary.read("it started")
        assert server.server.stop(0.1).wait(LIMIT_SECONDS)
        if pairing in DATA_PLANE:
            assert future.code() is grpc.StatusCode.UNAVAILABLE
        assert future.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        assert server.service.diary.read("it") == "active=False"


def test_second_stop_shortens_the_grace(pairing: Pairing) -> None:
    with local(pairing.server) as server, pairing.channel(server.target) as channel:
        future = channel.unary_unary(path("wait")).future(b"it")
        server.service.diary.read("it started")
        first = server.server.stop(1000)
        assert not first.is_set()
        assert server.server.stop(0.1).wait(LIMIT_SECONDS)
        assert first.wait(LIMIT_SECONDS)
        assert future.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        assert server.server.stop(None).is_set()


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_large_reply_survives_a_stop(pairing: Pairing) -> None:
    """The grace is for the way of the reply, too. (grpcio resets the connection now and then.)"""
    with local(pairing.server) as server, pairing.channel(server.target) as channel:
        future = channel.unary_unary(path("large_at_gate")).future(b"gate")
        server.service.diary.read("gate started")
        stopped = server.server.stop(LIMIT_SECONDS)
        server.service.gates["gate"].set()
        assert len(future.result(LIMIT_SECONDS)) == 3_000_000
        assert stopped.wait(LIMIT_SECONDS)


def test_start_twice(pairing: Pairing) -> None:
    with local(pairing.server) as server, pytest.raises(ValueError, match="start"):
        server.server.start()


def test_server_that_never_started() -> None:
    with ThreadPoolExecutor(1) as pool:
        server = tensorwire.server(pool)
        server.add_insecure_port("127.0.0.1:0")
        assert server.stop(None).is_set()
        assert server.stop(1).is_set()


def test_port_that_is_taken(pairing: Pairing) -> None:
    options = [("grpc.so_reuseport", 0)]
    with local(pairing.server, options=options) as first, ThreadPoolExecutor(1) as pool:
        second = make_server(pairing.server, pool, options=options)
        with pytest.raises(RuntimeError):
            second.add_insecure_port(first.target)


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_pool_that_was_shut_down(pairing: Pairing) -> None:
    """Calls end; none hangs."""
    with local("tensorwire") as server, pairing.channel(server.target) as channel:
        assert channel.path().transport == pairing.transport
        server.pool.shutdown()
        code = code_of(lambda: echo(channel, timeout=LIMIT_SECONDS))
        assert code is grpc.StatusCode.UNAVAILABLE


class Refusing(ThreadPoolExecutor):
    """Refuses a few jobs, as one whose queue has an end does."""

    refusals = 0

    def submit(self, *args: Any, **named: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise queue.Full
        return super().submit(*args, **named)


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
@pytest.mark.parametrize("whose", ["the server's", "the handler's", "a chosen handler's"])
def test_pool_that_refuses_some_calls(
    pairing: Pairing, whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Those end, and the ones after them are served."""

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        return request

    class Choosing(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            return method

    with Refusing(2) as pool, ThreadPoolExecutor(2) as idle:
        if whose != "the server's":
            answer.experimental_thread_pool = pool  # type: ignore[attr-defined]
        server = tensorwire.server(
            pool if whose == "the server's" else idle, maximum_concurrent_rpcs=2
        )
        method: Any = grpc.unary_unary_rpc_method_handler(answer)
        if whose == "a chosen handler's":
            server.add_generic_rpc_handlers((Choosing(),))
        else:
            server.add_registered_method_handlers("test.Own", {"Answer": method})
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with pairing.channel(f"127.0.0.1:{port}") as channel:
                assert channel.path().transport == pairing.transport
                call = channel.unary_unary("/test.Own/Answer")
                pool.refusals = 3
                for _ in range(3):
                    code = code_of(lambda: call(b"refused", timeout=LIMIT_SECONDS))
                    assert code is grpc.StatusCode.INTERNAL
                for n in range(4):
                    assert call(b"%d" % n, timeout=LIMIT_SECONDS) == b"%d" % n
        finally:
            server.stop(None)
    assert "a thread pool has not taken a call" in caplog.text


# --------------------------------------------------------------------------------------- closing


def test_closed_channel(pairing: Pairing) -> None:
    with local(pairing.server) as server:
        channel = pairing.channel(server.target)
        with channel:
            method = channel.unary_unary(path("echo"))
            assert method(b"x") == b"x"
            future = channel.unary_unary(path("wait")).future(b"it")
            server.service.diary.read("it started")
        assert future.code() is grpc.StatusCode.CANCELLED
        assert server.service.diary.read("it") == "active=False"
        for use in (method, method.with_call, method.future):
            with pytest.raises(ValueError, match="closed"):
                use(b"x")
        channel.close()


def test_channel_that_was_never_used() -> None:
    with tensorwire.insecure_channel("localhost:1"):
        pass


def test_stub_outlives_its_channel(pairing: Pairing) -> None:
    with local(pairing.server) as server:
        method = pairing.channel(server.target).unary_unary(path("echo"))
        gc.collect()
        assert method(b"x") == b"x"


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_dropped_channel_closes_its_link(pairing: Pairing) -> None:
    with local("tensorwire") as server:
        channel = pairing.channel(server.target)
        assert echo(channel) == b"x"
        uplink = weakref.ref(channel._uplink)
        del channel
        gc.collect()
        assert uplink() is None


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_stream_outlives_channel_and_stub(pairing: Pairing) -> None:
    with local("tensorwire") as server:
        stream = pairing.channel(server.target).unary_stream(path("count"))(b"1000")
        gc.collect()
        assert len(list(stream)) == 1000


# -------------------------------------------------------------------------------- connectivity


def test_channel_ready_future(pairing: Pairing) -> None:
    with local(pairing.server) as server, pairing.channel(server.target) as channel:
        grpc.channel_ready_future(channel).result(LIMIT_SECONDS)


def test_subscribe(pairing: Pairing) -> None:
    ready = threading.Event()

    def notice(state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            ready.set()

    with local(pairing.server) as server, pairing.channel(server.target) as channel:
        channel.subscribe(notice, try_to_connect=True)
        assert ready.wait(LIMIT_SECONDS)
        channel.unsubscribe(notice)


def test_unreachable_server(pairing: Pairing) -> None:
    """Fails at once, also when asked again, and names the reason."""
    with local(pairing.server) as server:
        target = server.target
    with pairing.channel(target) as channel:
        for _ in range(3):
            assert code_of(lambda: echo(channel)) is grpc.StatusCode.UNAVAILABLE


def test_wait_for_ready(pairing: Pairing) -> None:
    """A call that waits is served once the server has come."""
    with local(pairing.server) as server:
        target = server.target
    with (
        pairing.channel(target) as channel,
        ThreadPoolExecutor(1) as caller,
        ThreadPoolExecutor(2) as pool,
    ):
        waiting = caller.submit(echo, channel, wait_for_ready=True, timeout=30)
        late = make_server(pairing.server, pool)
        late.add_generic_rpc_handlers((Service().handlers(),))
        late.add_insecure_port(target)
        late.start()
        try:
            assert waiting.result(30) == b"x"
        finally:
            late.stop(None)


def test_wait_for_ready_ends_at_the_deadline(pairing: Pairing) -> None:
    with local(pairing.server) as server:
        target = server.target
    with pairing.channel(target) as channel:
        code = code_of(lambda: echo(channel, wait_for_ready=True, timeout=0.3))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_the_wait_for_termination_ends_when_the_server_is_collected() -> None:
    """The finalizer is called by hand: a thread that waits keeps the server alive."""
    with local("tensorwire") as server:
        waiting = threading.Thread(target=server.server.wait_for_termination)
        waiting.start()
        server.server.__del__()
        waiting.join(LIMIT_SECONDS)
        assert not waiting.is_alive()


# -------------------------------------------------------------------------------- loss and return


def test_server_comes_back(pairing: Pairing) -> None:
    with local(pairing.server) as server, pairing.channel(server.target) as channel:
        target = server.target
        assert echo(channel) == b"x"
        link = channel._uplink.link if pairing in DATA_PLANE else None
        server.server.stop(None)
        limit = monotonic() + LIMIT_SECONDS
        while link is not None and link.alive:  # what is sent before its end is known ends with it
            assert monotonic() < limit
        with local(pairing.server, address=target):
            assert echo(channel, wait_for_ready=True, timeout=LIMIT_SECONDS) == b"x"
            if pairing in DATA_PLANE:
                assert channel.path().transport == pairing.transport
                assert channel.stats()["opened"] == 2


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
@pytest.mark.parametrize("asked", [True, False])
def test_a_link_that_ends_beside_all_calls_is_counted(pairing: Pairing, asked: bool) -> None:
    """By who asks for the counters, or else when the channel closes, and once."""
    before = registry.LOST.get().counts().get(pairing.transport, 0)
    with local("tensorwire") as server, pairing.channel(server.target) as channel:
        assert echo(channel) == b"x"
        peer = channel.peer()
        server.server.stop(None)
        assert peer.wait_gone(LIMIT_SECONDS)
        if asked:
            for _ in range(2):
                stats = channel.stats()
                assert (stats["link"], stats["opened"], stats["lost"]) == (None, 1, 1)
    assert registry.LOST.get().counts()[pairing.transport] == before + 1


def test_killed_server(pairing: Pairing) -> None:
    """Calls in flight end UNAVAILABLE and are not sent again."""
    with process(kind=pairing.server) as (target, child), pairing.channel(target) as channel:
        call = channel.unary_unary(path("wait")).future(b"it")
        assert channel.unary_unary(path("recall"))(b"it started") == b""
        stream = channel.unary_stream(path("endless"))(b"x")
        assert next(stream) == b"x"
        child.kill()
        assert call.code() is grpc.StatusCode.UNAVAILABLE
        assert call.details()
        with pytest.raises(grpc.RpcError):
            for _ in stream:
                pass
        assert stream.code() is grpc.StatusCode.UNAVAILABLE
        assert code_of(lambda: echo(channel)) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_killed_client(pairing: Pairing, tmp_path: Any) -> None:
    """Its calls are cancelled at the server; the server goes on."""
    script = tmp_path / "client.py"
    script.write_text(
        "import sys, tensorwire\n"
        "channel = tensorwire.insecure_channel(sys.argv[1], transport=sys.argv[2])\n"
        "channel.unary_unary('/test.Raw/wait')(b'it')\n"
    )
    with local("tensorwire") as server:
        client = subprocess.Popen([sys.executable, script, server.target, pairing.transport])
        try:
            server.service.diary.read("it started")
        finally:
            client.kill()
            client.wait()
        assert server.service.diary.read("it") == "active=False"
        with pairing.channel(server.target) as channel:
            assert echo(channel) == b"x"


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_stopped_server_process_hits_the_deadline(pairing: Pairing) -> None:
    """A peer that is alive and silent is no lost peer."""
    with process(kind="tensorwire") as (target, child), pairing.channel(target) as channel:
        assert echo(channel) == b"x"
        with paused(child.pid):
            assert code_of(lambda: echo(channel, timeout=0.3)) is (
                grpc.StatusCode.DEADLINE_EXCEEDED
            )
        assert echo(channel, timeout=LIMIT_SECONDS) == b"x"


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_a_required_transport_is_tried_again_soon(pairing: Pairing) -> None:
    """However long the other pauses: calls have no other way."""
    pauses = (3600.0, 3600.0, 0.01, 3600.0, 3600.0)
    with local("tensorwire") as server:
        target = server.target
    limit = monotonic() + LIMIT_SECONDS
    with channels.channel(target, transport=pairing.transport, pauses=pauses) as channel:
        while channel.stats()["failures"] < 3:
            assert monotonic() < limit
            assert code_of(lambda: echo(channel)) is grpc.StatusCode.UNAVAILABLE


def test_close_while_the_channel_opens_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody answers at the target: it is a socket that only listens."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as caller:
        for _ in range(100):
            channel = tensorwire.insecure_channel(
                f"127.0.0.1:{silent.getsockname()[1]}", transport="tcp"
            )
            call = caller.submit(echo, channel)
            while channel._uplink._attempt is None and not call.done():
                os.sched_yield()
            channel.close()
            with pytest.raises((grpc.RpcError, ValueError)):
                call.result(LIMIT_SECONDS)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
