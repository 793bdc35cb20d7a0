# SPDX-License-Identifier: Apache-2.0
"""Peers: calls that either end of a link begins, tagged messages, and who comes and goes."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import pytest
from tests.rpc.pairings import DATA_PLANE, Pairing, process
from tests.rpc.service import LIMIT_SECONDS

import tensorwire as tw
from tensorwire.rpc.options import Limits

Behavior = Callable[[Any, grpc.ServicerContext], Any]


@contextlib.contextmanager
def serving(*, port: bool = True, **methods: Behavior) -> Iterator[tuple[tw.Server, str]]:
    """A server of unary methods, and its target; without a port it serves peers only."""
    with futures.ThreadPoolExecutor(4) as pool:
        server = tw.server(pool)
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(behavior)
            for name, behavior in methods.items()
        }
        server.add_registered_method_handlers("t.Peers", handlers)
        number = server.add_insecure_port("127.0.0.1:0") if port else 0
        server.start()
        try:
            yield server, f"127.0.0.1:{number}"
        finally:
            server.stop(None)


def call(channel: grpc.Channel, name: str, request: bytes = b"", **named: Any) -> Any:
    method: Any = channel.unary_unary(f"/t.Peers/{name}")
    return method(request, timeout=LIMIT_SECONDS, **named)


def process_of(context: grpc.ServicerContext) -> tw.Peer:
    peer = tw.peer_of(context)
    assert peer is not None
    return peer


@pytest.fixture(params=["shm", "tcp"])
def transport(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_server_calls_the_process_that_called_it(transport: Any) -> None:
    def there(request: bytes, context: grpc.ServicerContext) -> bytes:
        return b"%s, %s" % (request, call(process_of(context), "here", b"how are you?"))

    with (
        serving(here=lambda request, _: b"well, asked " + request, port=False) as (home, _),
        serving(there=there) as (_, target),
        tw.insecure_channel(target, transport=transport, serves=home) as channel,
    ):
        for _ in range(20):
            assert call(channel, "there", b"hello") == b"hello, well, asked how are you?"
        links = channel.stats()["link"]
        assert isinstance(links, dict)
        assert links["messages_sent"] == links["messages_received"] == 40


def test_streams_and_tensors_cross_on_one_link(transport: Any) -> None:
    """The server pushes large arrays to the client, which it has not connected to."""
    array = np.arange(1 << 19, dtype=np.float32)
    shared: Any = tw.empty(array.shape, array.dtype)
    shared[:] = array
    got: queue.SimpleQueue[int] = queue.SimpleQueue()

    def take(requests: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        for request in requests:
            got.put(int((np.frombuffer(request, np.float32) == array).sum()))
        return b"taken"

    def push(request: bytes, context: grpc.ServicerContext) -> bytes:
        pushing = process_of(context).stream_unary("/t.Peers/take")
        messages = (memoryview(shared).cast("B") for _ in range(int(request)))
        reply: bytes = pushing(messages, timeout=LIMIT_SECONDS)
        return reply

    with (
        serving(port=False) as (home, _),
        serving(push=push) as (_, target),
        tw.insecure_channel(target, transport=transport, serves=home) as channel,
    ):
        home.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    "t.Peers", {"take": grpc.stream_unary_rpc_method_handler(take)}
                )
            ]
        )
        assert call(channel, "push", b"5") == b"taken"
        assert [got.get(timeout=LIMIT_SECONDS) for _ in range(5)] == [array.size] * 5


def test_who_serves_nothing_says_so() -> None:
    with (
        serving(there=lambda _, context: call(process_of(context), "here")) as (_, target),
        tw.insecure_channel(target, transport="shm") as channel,
    ):
        with pytest.raises(grpc.RpcError, match="Exception calling application") as raised:
            call(channel, "there")
        assert "UNIMPLEMENTED" in str(raised.value.details())
        assert "this process serves no calls on this link" in str(raised.value.details())


def test_by_grpc_there_is_no_peer() -> None:
    with serving(there=lambda _, context: repr(tw.peer_of(context)).encode()) as (server, target):
        with tw.insecure_channel(target, transport="grpc") as channel:
            assert channel.peer() is None
            assert call(channel, "there") == b"None"
        with grpc.insecure_channel(target) as stock:
            assert call(stock, "there") == b"None"
        assert server.peers() == []


def test_a_server_that_does_not_run_serves_no_channel() -> None:
    with futures.ThreadPoolExecutor(1) as pool:
        server = tw.server(pool)
        with pytest.raises(ValueError, match="has to be started"):
            tw.insecure_channel("127.0.0.1:1", serves=server)
        server.start()
        server.stop(None)
        with pytest.raises(ValueError, match="not be stopped"):
            tw.insecure_channel("127.0.0.1:1", serves=server)


def test_the_link_closes_with_the_server_that_serves_it() -> None:
    with serving(there=lambda request, _: request) as (_, target):
        with serving(port=False) as (home, _):
            channel = tw.insecure_channel(target, transport="shm", serves=home)
            assert call(channel, "there", b"x") == b"x"
            peer = channel.peer()
            assert peer is not None
        assert peer.wait_gone(LIMIT_SECONDS)
        with channel, pytest.raises(grpc.RpcError) as raised:
            call(channel, "there", b"x")
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "the server that is to serve the peer is closed" in str(raised.value.details())


def test_peers_come_and_go() -> None:
    came: queue.SimpleQueue[tw.Peer] = queue.SimpleQueue()
    gone: queue.SimpleQueue[tw.Peer] = queue.SimpleQueue()
    with serving(there=lambda request, _: request) as (server, target):
        server.on_peer(came.put)
        with tw.insecure_channel(target, transport="shm") as channel:
            here = channel.peer()
            assert here is not None
            there = came.get(timeout=LIMIT_SECONDS)
            assert server.peers() == [there] == [*{there, *server.peers()}]
            assert here == channel.peer() != there
            assert (here.transport, there.transport) == ("shm", "shm")
            assert (here.alive, there.alive, here.death) == (True, True, "")
            assert here.pid == there.pid
            assert there.agent.startswith("grpc-python/")
            assert there.address.startswith("ipv4:127.0.0.1:")
            assert call(channel, "there", b"x") == b"x"
            assert there.stats()["messages_received"] == 1
            assert str(there.path()) == f"shm to {there.address}"
            assert repr(there) == f"<tensorwire.Peer {there.address} by shm, alive>"
            assert not here.wait_gone(0.0)
            here.on_gone(gone.put)
            there.on_gone(gone.put)
            there.close()  # the server wants it no more
            assert {gone.get(timeout=LIMIT_SECONDS) for _ in range(2)} == {here, there}
            assert here.wait_gone(LIMIT_SECONDS)
            assert here.wait_gone(LIMIT_SECONDS)  # asked anew, after its end
            assert not here.alive
            assert "gone" in repr(here)
            with pytest.raises(grpc.RpcError, match="is gone"):
                call(here, "there", b"x")
            # The channel's next call opens another link: that is another peer.
            assert call(channel, "there", b"x") == b"x"
            again = came.get(timeout=LIMIT_SECONDS)
            assert again != there
        server.on_peer(came.put)  # those that are there


def test_waits_that_time_out_leave_nothing_behind() -> None:
    class Native:
        asked = 0

        def share(self) -> Native:
            return self

        def notify(self, queue: object, token: int) -> None:
            self.asked += 1

    native: Any = Native()
    for _ in range(10):
        assert not tw.Peer(native, Limits()).wait_gone(0.0)
    assert native.asked == 1


def test_callbacks_for_peers_keep_no_server_alive() -> None:
    import gc
    import weakref

    with futures.ThreadPoolExecutor(1) as pool:
        server = tw.server(pool)
        server.add_insecure_port("127.0.0.1:0")
        server.on_peer(lambda _: None)
        watched = weakref.ref(server)
        del server
        gc.collect()
        assert watched() is None


def test_a_peer_that_is_killed_is_gone() -> None:
    with (
        process(kind="tensorwire") as (target, server),
        tw.insecure_channel(target, transport="shm") as channel,
    ):
        there = channel.peer()
        assert there is not None
        assert there.pid == server.pid
        server.kill()
        assert there.wait_gone(LIMIT_SECONDS)
        assert there.death


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_tagged_messages_go_both_ways(pairing: Pairing) -> None:
    arrived: queue.SimpleQueue[tw.Peer] = queue.SimpleQueue()
    large = np.arange(1 << 20, dtype=np.float32)
    with serving() as (server, target):
        server.on_peer(arrived.put)
        with pairing.channel(target) as channel:
            here = channel.peer()
            assert here is not None
            there = arrived.get(timeout=LIMIT_SECONDS)
            with futures.ThreadPoolExecutor(1) as pool:
                sent = pool.submit(here.send, 7, [b"head", large.data], LIMIT_SECONDS)
                head, tail = there.receive(7, LIMIT_SECONDS)
                assert bytes(head) == b"head"
                np.testing.assert_array_equal(np.frombuffer(memoryview(tail), np.float32), large)
                sent.result(LIMIT_SECONDS)
                memory = np.zeros_like(large)
                sent = pool.submit(there.send, 2**63 - 1, large.data, LIMIT_SECONDS)
                assert here.receive_into(2**63 - 1, memory.data, LIMIT_SECONDS) == large.nbytes
                np.testing.assert_array_equal(memory, large)
                sent.result(LIMIT_SECONDS)


def test_messages_are_asked_for_ahead(transport: Any) -> None:
    """In their order, into memory or not; one that is taken back goes to who asks next; and one
    that waits ends with its peer."""
    arrived: queue.SimpleQueue[tw.Peer] = queue.SimpleQueue()
    with serving() as (server, target):
        server.on_peer(arrived.put)
        with tw.insecure_channel(target, transport=transport) as channel:
            here = channel.peer()
            assert here is not None
            there = arrived.get(timeout=LIMIT_SECONDS)
            memory, came = bytearray(6), threading.Event()
            first, second = here.post(1, memory, came.set), here.post(1)
            assert (first.wait(0.0), first.done) == (None, False)
            there.send(1, b"first")
            there.send(1, b"second")
            assert came.wait(LIMIT_SECONDS)
            assert (first.wait(LIMIT_SECONDS), bytes(memory)) == (5, b"first\0")
            found = second.wait(LIMIT_SECONDS)
            assert isinstance(found, list)
            assert [bytes(segment) for segment in found] == [b"second"]
            with pytest.raises(grpc.RpcError) as raised:
                second.wait(LIMIT_SECONDS)
            assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            taken_back = here.post(2)
            assert taken_back.cancel()
            assert not taken_back.cancel()
            there.send(2, b"for another")
            assert [bytes(each) for each in here.receive(2, LIMIT_SECONDS)] == [b"for another"]
            with pytest.raises(grpc.RpcError) as raised:
                here.post(2**63)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            ended = threading.Event()
            last = here.post(3, None, ended.set)
            there.close()
            assert ended.wait(LIMIT_SECONDS)
            with pytest.raises(grpc.RpcError) as raised:
                last.wait(LIMIT_SECONDS)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_what_is_wrong_with_tagged_messages_is_said() -> None:
    arrived: queue.SimpleQueue[tw.Peer] = queue.SimpleQueue()
    with serving() as (server, target):
        server.on_peer(arrived.put)
        with tw.insecure_channel(target, transport="tcp") as channel:
            here = channel.peer()
            assert here is not None
            there = arrived.get(timeout=LIMIT_SECONDS)
            with pytest.raises(grpc.RpcError, match="no message with tag 3") as raised:
                here.receive(3, timeout=0.0)
            assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            there.send(3, b"late")  # goes to who asks next
            assert [bytes(segment) for segment in here.receive(3, LIMIT_SECONDS)] == [b"late"]
            there.send(4, b"more than that")
            with pytest.raises(grpc.RpcError) as raised:
                here.receive_into(4, bytearray(3), LIMIT_SECONDS)
            assert raised.value.code() is grpc.StatusCode.OUT_OF_RANGE
            with pytest.raises(grpc.RpcError) as raised:
                here.send(2**63, b"")
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            with pytest.raises((BufferError, TypeError)):
                here.receive_into(4, b"read only")  # type: ignore[arg-type,unused-ignore]
            waiting = threading.Event()

            def wait_for_message() -> None:
                waiting.set()
                here.receive(5)

            with futures.ThreadPoolExecutor(1) as pool:
                blocked = pool.submit(wait_for_message)
                assert waiting.wait(LIMIT_SECONDS)
                there.close()
                with pytest.raises(grpc.RpcError) as raised:
                    blocked.result(LIMIT_SECONDS)
            assert raised.value.code() in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.CANCELLED,
            )
            with pytest.raises(grpc.RpcError):
                here.send(6, b"x", LIMIT_SECONDS)


def test_a_call_that_nobody_looks_after_is_cancelled(transport: Any) -> None:
    """A signal may come between the start of a call and the object for its user."""
    ended: queue.Queue[str] = queue.Queue()

    def hold(request: bytes, context: grpc.ServicerContext) -> bytes:
        over = threading.Event()
        assert context.add_callback(over.set)
        ended.put("begun")
        assert over.wait(LIMIT_SECONDS)
        ended.put("cancelled")
        return b""

    with (
        serving(hold=hold) as (_, target),
        tw.insecure_channel(target, transport=transport) as channel,
    ):
        peer = channel.peer()
        assert peer is not None
        alone = peer._native.start("/t.Peers/hold", None, None, b"", True, False)
        assert ended.get(timeout=LIMIT_SECONDS) == "begun"
        del alone
        assert ended.get(timeout=LIMIT_SECONDS) == "cancelled"
