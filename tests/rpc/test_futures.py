# SPDX-License-Identifier: Apache-2.0
"""``future()`` over every pairing: the interfaces of grpc.Future and grpc.Call."""

from __future__ import annotations

import gc
import threading
from typing import Any

import grpc
import pytest
from tests.rpc.pairings import DATA_PLANE
from tests.rpc.service import LIMIT_SECONDS, path


def start(channel: Any, method: str, request: bytes, **options: Any) -> Any:
    return channel.unary_unary(path(method)).future(request, **options)


def recall(channel: Any, key: str) -> bytes:
    entry: bytes = channel.unary_unary(path("recall"))(key.encode())
    return entry


def test_result(channel: Any) -> None:
    future = start(channel, "echo", b"x", timeout=LIMIT_SECONDS)
    assert isinstance(future, grpc.Call)
    assert isinstance(future, grpc.Future)
    assert future.result(LIMIT_SECONDS) == b"x"
    assert future.result() == b"x"
    assert future.exception() is None
    assert future.traceback() is None
    assert future.code() is grpc.StatusCode.OK
    assert future.details() == ""
    assert future.done()
    assert not future.running()
    assert not future.is_active()
    assert not future.cancelled()
    assert not future.cancel()
    assert not future.add_callback(lambda: None)


def test_while_it_runs(channel: Any, key: str) -> None:
    future = start(channel, "pass_gate", key.encode(), timeout=1000)
    assert recall(channel, f"{key} started") == b""
    assert future.running()
    assert future.is_active()
    assert not future.done()
    assert 900 < future.time_remaining() <= 1000
    for wait in (future.result, future.exception, future.traceback):
        with pytest.raises(grpc.FutureTimeoutError):
            wait(timeout=0.01)
    done, called = threading.Event(), threading.Event()
    mine: list[Any] = []
    future.add_done_callback(mine.append)
    future.add_done_callback(lambda _: done.set())
    assert future.add_callback(called.set)
    assert not done.is_set()
    channel.unary_unary(path("open_gate"))(key.encode())
    assert future.result(LIMIT_SECONDS) == b"passed"
    assert done.wait(LIMIT_SECONDS)
    assert mine == [future]
    assert called.wait(LIMIT_SECONDS)


def test_done_callback_after_the_end(channel: Any) -> None:
    future = start(channel, "echo", b"x")
    future.result()
    seen: list[Any] = []
    future.add_done_callback(seen.append)
    assert seen == [future]


def test_callback_that_raises(channel: Any, key: str) -> None:
    """It harms neither the call nor other callbacks."""
    future = start(channel, "pass_gate", key.encode())
    after = threading.Event()

    def bad(_: object) -> None:
        raise ValueError("a callback that fails")

    future.add_done_callback(bad)
    future.add_done_callback(lambda _: after.set())
    channel.unary_unary(path("open_gate"))(key.encode())
    assert after.wait(LIMIT_SECONDS)
    assert future.result() == b"passed"


def test_failure(channel: Any) -> None:
    future = start(channel, "abort", b"why", metadata=(("code", "DATA_LOSS"),))
    with pytest.raises(grpc.RpcError) as caught:
        future.result(LIMIT_SECONDS)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.DATA_LOSS
    assert error.details() == "why"
    assert future.code() is grpc.StatusCode.DATA_LOSS
    assert future.details() == "why"
    assert ("why", "aborted") in future.trailing_metadata()
    exception: Any = future.exception()
    assert isinstance(exception, grpc.RpcError)
    assert exception.code() is grpc.StatusCode.DATA_LOSS
    assert future.traceback() is not None
    assert not future.cancelled()


def test_cancel(channel: Any, key: str) -> None:
    future = start(channel, "wait", key.encode())
    assert recall(channel, f"{key} started") == b""
    assert future.cancel()
    assert future.cancelled()
    assert future.done()
    assert not future.cancel()
    for ask in (future.result, future.exception, future.traceback):
        with pytest.raises(grpc.FutureCancelledError):
            ask()
    assert future.code() is grpc.StatusCode.CANCELLED
    assert future.details() == "Locally cancelled by application!"
    assert recall(channel, key) == b"active=False"


def test_deadline(channel: Any, key: str) -> None:
    future = start(channel, "wait", key.encode(), timeout=0.2)
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(LIMIT_SECONDS)
    assert future.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert recall(channel, key) == b"active=False"


def test_dropped_future_cancels_its_call(channel: Any, key: str) -> None:
    future = start(channel, "wait", key.encode())
    assert recall(channel, f"{key} started") == b""
    del future
    gc.collect()
    assert recall(channel, key) == b"active=False"


def test_many_at_a_time(channel: Any) -> None:
    futures = [start(channel, "echo", str(i).encode()) for i in range(100)]
    assert [int(future.result(LIMIT_SECONDS)) for future in futures] == list(range(100))


def test_threads_share_a_multicallable(channel: Any) -> None:
    method = channel.unary_unary(path("echo"))
    wrong: list[int] = []

    def run(thread: int) -> None:
        for i in range(50):
            request = f"{thread} {i}".encode()
            if method(request) != request:
                wrong.append(i)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()
    assert wrong == []


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str, indirect=True)
def test_thousands_at_once(channel: Any) -> None:
    """More than there are workers, and than a link has ready for them."""
    requests = [str(i).encode() for i in range(3000)]
    futures = [start(channel, "echo", request) for request in requests]
    assert [future.result(3 * LIMIT_SECONDS) for future in futures] == requests
