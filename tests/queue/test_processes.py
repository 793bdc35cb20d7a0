# SPDX-License-Identifier: Apache-2.0
"""Queues between processes that are killed and interrupted."""

from __future__ import annotations

import asyncio
import os
import signal
from ast import literal_eval
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from tests.forked import inherited
from tests.pausing import paused
from tests.queue.conftest import LIMIT, until

from tensorwire import queue


def test_twenty_producers(serve: Any, start: Callable[..., Any]) -> None:
    served = serve(capacity=8)
    children = [start("produce", served.target, served.name, 10) for _ in range(20)]
    found = [served.own.get(LIMIT) for _ in range(200)]
    for item in found:
        assert item["array"].tolist() == [item["number"]] * 16
    assert sorted(item["number"] for item in found) == sorted([*range(10)] * 20)
    for child in children:
        assert child.stdout.readline() == "flushed\n"
    stats = served.own.stats()
    assert (stats.accepted, stats.delivered, stats.lost) == (200, 200, 0)


def test_a_program_that_ends_has_put_what_it_has_put(serve: Any, start: Callable[..., Any]) -> None:
    served = serve(capacity=1000)
    child = start("end", served.target, served.name)
    assert [served.own.get(LIMIT) for _ in range(100)] == [*range(100)]
    child.wait(LIMIT)


def test_a_killed_producer_loses_nothing_that_it_flushed(
    serve: Any, start: Callable[..., Any]
) -> None:
    served = serve(capacity=8)
    child = start("produce", served.target, served.name, 5)
    assert child.stdout.readline() == "flushed\n"
    child.kill()
    until(lambda: served.own.stats().producers == 0)
    assert [served.own.get(LIMIT)["number"] for _ in range(5)] == [*range(5)]


def test_a_producer_that_is_killed_while_it_waits_for_room_leaves_the_turn(
    serve: Any, start: Callable[..., Any]
) -> None:
    served = serve(capacity=1)
    child = start("produce", served.target, served.name, 5)
    until(lambda: served.own.stats().waiting_producers == 1)
    child.kill()
    until(lambda: served.own.stats().waiting_producers == 0)
    assert served.own.get(LIMIT)["number"] == 0
    served.own.put({"number": 9}, LIMIT)
    assert served.own.get(LIMIT)["number"] == 9


def test_what_a_killed_consumer_was_handed_is_lost_and_nothing_else(
    serve: Any, start: Callable[..., Any]
) -> None:
    served = serve(capacity=100)
    for number in range(50):
        served.own.put({"number": number})
    child = start("consume", served.target, served.name, 10, 8)
    seen = [int(child.stdout.readline()) for _ in range(10)]
    assert seen == [*range(10)]
    child.kill()
    until(lambda: served.own.stats().consumers == 0)
    stats = served.own.stats()
    assert stats.handed == 0
    assert 0 < stats.lost <= 16, "at most what two questions have asked for"
    rest = [item["number"] for item in served.own.get_batch(100, LIMIT)]
    assert rest == [*range(50 - len(rest), 50)]
    assert not {*rest} & {*seen}, "at most once"
    assert stats.delivered + stats.lost + len(rest) == 50


def test_a_consumer_that_is_killed_while_it_waits_takes_nothing(
    serve: Any, start: Callable[..., Any]
) -> None:
    served = serve()
    child = start("consume", served.target, served.name, 1, 0)
    until(lambda: served.own.stats().waiting_consumers == 1)
    child.kill()
    until(lambda: served.own.stats().waiting_consumers == 0)
    served.own.put({"number": 1})
    assert served.own.get(LIMIT) == {"number": 1}
    assert served.own.stats().lost == 0


def test_a_stopped_consumer_stops_nobody(serve: Any, start: Callable[..., Any]) -> None:
    served = serve(capacity=4)
    child = start("consume", served.target, served.name, 1, 0)
    served.own.put({"number": 0})
    assert child.stdout.readline() == "0\n"
    os.kill(child.pid, signal.SIGSTOP)
    with served.connect() as client:
        for number in range(20):
            client.put({"number": number}, LIMIT)
            assert client.get(LIMIT) == {"number": number}


def test_a_killed_server_ends_all_waits(start: Callable[..., Any]) -> None:
    child = start("serve", 1)
    target = f"127.0.0.1:{int(child.stdout.readline())}"
    with ThreadPoolExecutor(3) as pool:
        producer, waiting, consumer = (queue.connect(target, "queue") for _ in range(3))
        producer.put(1)
        producer.flush(LIMIT)
        put = pool.submit(waiting.put, 2)
        until(lambda: producer.stats().waiting_producers == 1)
        assert consumer.get(LIMIT) == 1
        assert consumer.get(LIMIT) == 2
        put.result(LIMIT)
        got = pool.submit(consumer.get)
        until(lambda: producer.stats().waiting_consumers == 1)
        child.kill()
        with pytest.raises(queue.ServerLostError) as caught:
            got.result(LIMIT)
        assert isinstance(caught.value, ConnectionError)
        for use in (lambda: producer.put(3, LIMIT), lambda: consumer.get(LIMIT), producer.stats):
            with pytest.raises(queue.ServerLostError):
                use()
        for client in (producer, waiting, consumer):
            client.close(drain=False)


def test_a_killed_server_ends_a_wait_for_room(start: Callable[..., Any]) -> None:
    child = start("serve", 1)
    target = f"127.0.0.1:{int(child.stdout.readline())}"
    with ThreadPoolExecutor(1) as pool:
        client = queue.connect(target, "queue")
        client.put(1)
        put = pool.submit(client.put, 2)
        until(lambda: client.stats().waiting_producers == 1)
        child.kill()
        with pytest.raises(queue.ServerLostError):
            put.result(LIMIT)
        with pytest.raises(queue.ServerLostError):
            client.close()


def test_a_stopped_server_ends_waits_with_a_timeout(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("client", "consuming", "producing"):
        monkeypatch.setattr(f"tensorwire.queue.{module}.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("tensorwire.queue.producing._SETTLE_SECONDS", 0.2)
    child = start("serve", 2)
    with queue.connect(f"127.0.0.1:{int(child.stdout.readline())}", "queue") as client:
        client.put(1)
        assert client.get(LIMIT) == 1
        client.put_batch([2, 3])
        client.flush(LIMIT)
        with paused(child.pid):
            for use in (lambda: client.put(4, 0.05), lambda: client.get(0.05)):
                with pytest.raises(queue.ServerLostError, match="has not answered"):
                    use()
        assert [client.get(LIMIT), client.get(LIMIT)] == [2, 3]
        client.put(5, LIMIT)


def test_ctrl_c_in_a_get_loses_no_item(serve: Any, start: Callable[..., Any]) -> None:
    served = serve()
    served.own.put({"number": 0})
    child = start("wait_for_one", served.target, served.name)
    assert child.stdout.readline() == "waiting\n"
    until(lambda: served.own.stats().waiting_consumers == 1)
    os.kill(child.pid, signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"
    served.own.put({"number": 7})
    assert child.stdout.readline() == "7\n"
    until(lambda: served.own.stats().consumers == 0)
    stats = served.own.stats()
    assert (stats.delivered, stats.lost) == (2, 0)


def test_ctrl_c_in_a_put_leaves_the_queue_as_it_was(serve: Any, start: Callable[..., Any]) -> None:
    served = serve(capacity=1)
    child = start("wait_for_room", served.target, served.name)
    assert child.stdout.readline() == "waiting\n"
    until(lambda: served.own.stats().waiting_producers == 1)
    os.kill(child.pid, signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"
    assert served.own.get(LIMIT) == {"number": 1}
    assert child.stdout.readline() == "put\n"
    assert served.own.get(LIMIT) == {"number": 3}


ITEMS, INTERRUPTS = 100, 300


@pytest.mark.parametrize("prefetch", [0, 3])
def test_ctrl_c_at_any_moment_of_a_get_loses_no_item(
    serve: Any, start: Callable[..., Any], prefetch: int
) -> None:
    served = serve()
    child = start("get_between_alarms", served.target, served.name, ITEMS, INTERRUPTS, prefetch)
    for number in range(ITEMS):
        served.own.put(number, LIMIT)
    assert int(child.stdout.readline()) > 0
    assert literal_eval(child.stdout.readline()) == [*range(ITEMS)]
    until(lambda: served.own.stats().consumers == 0)
    stats = served.own.stats()
    assert (stats.items, stats.delivered, stats.lost) == (0, ITEMS, 0)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_ctrl_c_at_any_moment_beside_another_thread_loses_no_item(
    serve: Any, start: Callable[..., Any], prefetch: int
) -> None:
    served = serve(capacity=64)
    child = start("get_beside_a_thread", served.target, served.name, 10 * INTERRUPTS, prefetch)
    for number in range(30 * ITEMS):
        served.own.put(number, LIMIT)
    served.own.close()
    assert int(child.stdout.readline()) > 0
    assert sorted(literal_eval(child.stdout.readline())) == [*range(30 * ITEMS)]
    until(lambda: served.own.stats().consumers == 0)
    stats = served.own.stats()
    assert (stats.items, stats.delivered, stats.lost) == (0, 30 * ITEMS, 0)


def test_ctrl_c_at_any_moment_of_a_put_leaves_an_item_whole(
    serve: Any, start: Callable[..., Any]
) -> None:
    served = serve()
    child = start("put_between_alarms", served.target, served.name, ITEMS, INTERRUPTS)
    with ThreadPoolExecutor(1) as pool:
        came = pool.submit(child.stdout.readline)
        got = []
        while not (came.done() and served.own.stats().items == 0):
            with suppress(queue.EmptyError):
                got.append(served.own.get(0.01))
    assert int(came.result()) > 0
    assert got == sorted({*got, *literal_eval(child.stdout.readline())})


@pytest.mark.parametrize("latest", [2e-5, 2e-4])
@pytest.mark.parametrize("capacity", [1, 64])
@pytest.mark.parametrize("end", ["get", "get_batch", "put"])
def test_ctrl_c_at_any_moment_in_the_server_s_own_process_loses_no_item(
    start: Callable[..., Any], end: str, capacity: int, latest: float
) -> None:
    child = start("local_between_alarms", end, 1500, 3000, capacity, latest)
    came, put, got, counted, waiting = (literal_eval(child.stdout.readline()) for _ in range(5))
    assert came > 20
    assert got == sorted(set(got)), "each once, in the order in which they were put"
    assert set(put) <= set(got)
    if end != "put":
        assert got == put
    assert counted == (0, 0, 0, len(got), len(got), 0, 0)
    assert waiting == 0


# Of JAX, where another test has imported it.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_forked_child_is_told_to_connect_itself(serve: Any) -> None:
    served = serve()
    with served.connect() as client:
        client.put(1)
        client.flush(LIMIT)
        assert client.get(LIMIT) == 1
        assert client._producing is not None
        other_thread = object()  # which puts at the fork, and never ends in the child
        client._producing._turn.acquire(other_thread, 0.0)
        with served.own._store._lock:  # and so would one of the server's
            assert inherited(client.close, served.own.close) == ["", ""]
            failed = inherited(lambda: served.own.get(LIMIT), lambda: served.own.get_batch(2))
        found = failed + inherited(
            lambda: client.put(2, LIMIT),
            lambda: client.put_batch([2], LIMIT),
            lambda: client.get(LIMIT),
            lambda: asyncio.run(client.get_async(LIMIT)),
            lambda: client.flush(LIMIT),
            client.stats,
            lambda: served.own.put(2, LIMIT),
            lambda: served.own.get(LIMIT),
            lambda: served.own.get_batch(2, LIMIT),
            lambda: asyncio.run(served.own.get_async(LIMIT)),
        )
        client._producing._turn.release(other_thread)
        assert {each.partition(":")[0] for each in found} == {"ServerLostError"}, found
        assert all("made before fork()" in each for each in found)
        client.put(3)  # the parent's go on
        assert served.own.get(LIMIT) == 3
