# SPDX-License-Identifier: Apache-2.0
"""Peers of a queue that break its protocol, at either end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import pytest
from tests.queue.conftest import LIMIT, until

import tensorwire
from tensorwire import queue, rpc
from tensorwire.queue import serving, wire
from tensorwire.queue.serving import service_name

HOSTILE = {
    "no control": ("Put", []),
    "garbage": ("Put", [b"\xc1"]),
    "more than there is": ("Put", [wire.encode(wire.Put((5,), 0, True)), b"1"]),
    "too large": ("Put", [wire.encode(wire.Put((1,), 0, True)), bytes(2000)]),
    "taken what it never had": ("Get", [wire.encode(wire.Ask(1, 1, 7))]),
    "an answer": ("Get", [wire.encode(wire.Settled(1, 2, 3)), b"1"]),
}


@pytest.mark.parametrize(("method", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_client_ends_its_own_stream(serve: Any, method: str, message: Any) -> None:
    served = serve(capacity_bytes=1000)
    with served.connect() as good, tensorwire.insecure_channel(served.target) as channel:
        good.put(1)
        good.flush(LIMIT)
        peer = channel.peer()
        assert peer
        call = peer.duplex(f"/tensorwire.queue.{served.name}/{method}")
        call.send(message, LIMIT, deque())
        inbox: Any = deque()
        while not inbox or inbox[-1] is not None:
            call.receive_to(inbox, LIMIT)
        error = call.outcome(LIMIT)
        if method == "Put" or "taken" in str(error) or "malformed" in str(error):
            assert error is not None
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        good.put(2)
        assert [good.get(LIMIT), good.get(LIMIT)] == [1, 2]
    stats = served.own.stats()
    assert stats.accepted == 2
    assert stats.lost == 0


def test_a_stranger_withdraws_nothing(serve: Any) -> None:
    served = serve(capacity=1)
    with served.connect() as client, served.connect() as other:
        client.put(1)
        session = client._producing._opened.session
        with pytest.raises(queue.ClosedError, match="the stream has ended"):
            other._withdraw(wire.Withdraw(session, 1, 1))
        with pytest.raises(queue.ClosedError):
            client._withdraw(wire.Withdraw(session + 1, 1, 1))


def test_only_what_may_be_in_a_message_is_withdrawn_at_once(serve: Any) -> None:
    """Else all that comes later is refused, and each number kept."""
    served = serve()
    with served.connect() as client:
        client.put(1)
        client.flush(LIMIT)
        session = client._producing._opened.session
        with pytest.raises(queue.QueueError, match="4097 items withdrawn") as caught:
            client._withdraw(wire.Withdraw(session, 1, wire.MAX_ITEMS + 1))
        assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
        client.put(2)
        client.flush(LIMIT)
        assert served.own.get_batch(2, LIMIT) == [1, 2]


def test_a_stream_s_withdrawals_hold_one_thread(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_WITHDRAW_SECONDS", LIMIT)
    served = serve()
    with served.connect() as client, ThreadPoolExecutor(2) as pool:
        session = client._putting()._opened.session
        at_server = served.own._service._producers[session]
        first = pool.submit(client._withdraw, wire.Withdraw(session, 1, 2))
        until(lambda: at_server.impatient == range(1, 3))
        second = pool.submit(client._withdraw, wire.Withdraw(session, 1, 1))
        with pytest.raises(queue.BudgetError, match="another withdrawal"):
            first.result(LIMIT)
        client.put(1)
        assert second.result(LIMIT) == 1


def test_a_queue_with_too_many_calls_says_so(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    with monkeypatch.context() as patch:
        patch.setattr(serving, "MAX_STREAMS", 0)
        with pytest.raises(queue.BudgetError, match="serves 0 calls at once"):
            served.connect()
    served.connect().close()


@pytest.mark.parametrize("answer", [[], [b"\xc1"], [b""]], ids=["empty", "garbage", "no control"])
@pytest.mark.parametrize("opens", [True, False], ids=["after it has opened", "at once"])
def test_a_hostile_server_ends_the_stream(opens: bool, answer: list[bytes]) -> None:
    words = [[wire.encode(wire.Opened(1, 1, 1000, 0, 0))]] if opens else []
    stats = wire.encode(queue.Stats(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, False))

    def says(_: Any, __: Any) -> Iterator[list[bytes]]:
        yield from [*words, answer]

    server = tensorwire.server(ThreadPoolExecutor(4))
    stream: Any = {"request_deserializer": rpc.segments(lambda segments: segments)}
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                service_name("bad"),
                {
                    "Put": grpc.stream_stream_rpc_method_handler(says, **stream),
                    "Get": grpc.stream_stream_rpc_method_handler(says, **stream),
                    "Stats": grpc.unary_unary_rpc_method_handler(lambda _, __: stats),
                },
            )
        ]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        client = queue.connect(f"127.0.0.1:{port}", "bad")
        for use in (lambda: client.get(LIMIT), lambda: client.put(1, LIMIT)):
            with pytest.raises(queue.QueueError, match="bad answer"):
                use()
        with suppress(queue.QueueError):
            client.close(drain=False)
    finally:
        server.stop(None)
