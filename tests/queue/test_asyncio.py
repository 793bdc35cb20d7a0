# SPDX-License-Identifier: Apache-2.0
"""Queues in an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.queue.conftest import LIMIT

import tensorwire
from tensorwire import queue

End = Any


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(LIMIT / 0.002)):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it has not come")


def run(program: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(program(), LIMIT)

    asyncio.run(limited())


@pytest.fixture(params=["served", "connected"])
def ends(request: pytest.FixtureRequest, serve: Any) -> Iterator[Any]:
    clients = []

    def made(**options: Any) -> tuple[queue.Queue, End]:
        served = serve(**options)
        if request.param == "served":
            return served.own, served.own
        clients.append(served.connect())
        return served.own, clients[-1]

    yield made
    for client in clients:
        client.close(drain=False)


def test_producers_and_consumers_in_one_loop(ends: Any) -> None:
    _, end = ends(capacity=3)

    async def put(start: int) -> None:
        for n in range(start, start + 20):
            await end.put_async(n)

    async def get() -> list[int]:
        return [await end.get_async() for _ in range(20)]

    async def program() -> None:
        *_, first, second = await asyncio.gather(put(0), put(100), get(), get())
        assert sorted(first + second) == [*range(20), *range(100, 120)]

    run(program)


def test_large_arrays(ends: Any) -> None:
    _, end = ends(capacity=2)

    async def program() -> None:
        array = np.arange(500_000)
        await end.put_async(array)
        assert np.array_equal(await end.get_async(), array)

    run(program)


def test_batches(ends: Any) -> None:
    own, end = ends(capacity=3)

    async def program() -> None:
        with pytest.raises(queue.FullError) as caught:
            await end.put_batch_async(range(5), 0.02)
        assert caught.value.accepted == 3
        found = await end.get_batch_async(2)
        while len(found) < 3:
            found += await end.get_batch_async(2)
        assert found == [0, 1, 2]
        await end.put_batch_async([7, 8])
        if isinstance(end, queue.QueueClient):
            await end.flush_async(LIMIT)
        assert own.stats().items == 2

    run(program)


def test_deadlines(ends: Any) -> None:
    _, end = ends(capacity=1)

    async def program() -> None:
        with pytest.raises(queue.EmptyError):
            await end.get_async(0.02)
        await end.put_async(1)
        with pytest.raises(queue.FullError):
            await end.put_async(2, 0.02)
        assert await end.get_async(0) == 1
        with pytest.raises(queue.EmptyError):
            await end.get_async(0)

    run(program)


def test_a_cancelled_get_takes_nothing_with_it(ends: Any) -> None:
    own, end = ends()

    async def program() -> None:
        waiting = asyncio.create_task(end.get_async())
        await until(lambda: own.stats().waiting_consumers == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert own.stats().waiting_consumers == 0
        own.put(1)
        assert own.get(0) == 1

        waiting = asyncio.create_task(end.get_async())
        await until(lambda: own.stats().waiting_consumers == 1)
        own.put(2)  # for the waiting one, which is cancelled before it hears of it
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await end.get_async(LIMIT) == 2

    run(program)


def test_a_cancelled_put_has_not_put(ends: Any) -> None:
    own, end = ends(capacity=1)

    async def program() -> None:
        await end.put_async(1)
        waiting = asyncio.create_task(end.put_async(2))
        await until(lambda: own.stats().waiting_producers == 1)
        behind = asyncio.create_task(end.put_async(3))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert own.get(LIMIT) == 1
        await behind
        assert own.get(LIMIT) == 3

    run(program)


def test_a_put_cancelled_once_there_was_room_has_put_once(serve: Any) -> None:
    own = serve(capacity=1).own

    async def program() -> None:
        await own.put_async(1)
        waiting = asyncio.create_task(own.put_async(2))
        await until(lambda: own.stats().waiting_producers == 1)
        assert own.get(0) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert own.get(0) == 2
        stats = own.stats()
        assert (stats.accepted, stats.delivered, stats.refused) == (2, 2, 0)

    run(program)


@pytest.fixture
def told(serve: Any) -> Iterator[tuple[queue.Queue, Any]]:
    """A queue that is full, and a client that has been told that it is not."""
    served = serve(capacity=1)
    client = served.connect()
    client._putting()
    served.own.put(1)
    yield served.own, client
    client.close(drain=False)


def test_a_cancelled_flush_leaves_the_turn(told: Any) -> None:
    own, client = told

    async def program() -> None:
        await client.put_async(2)
        with pytest.raises(queue.FullError):
            await client.flush_async(0.01)
        waiting = asyncio.create_task(client.flush_async())
        await until(lambda: client._producing._turn.holder is not None)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        try:
            assert client._producing._turn.holder is None
            assert own.get(LIMIT) == 1
            await client.flush_async(LIMIT)
            assert own.get(0) == 2
        finally:
            own.close(drain=False)  # it ends a thread that waits

    run(program)


@pytest.mark.parametrize("end", ["put", "get"])
def test_a_cancellation_stays_one_though_nothing_can_be_taken_back(
    told: Any, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    own, client = told
    if end == "get":
        own.get(LIMIT)

    def lost(*_: object, **__: object) -> bytes:
        raise queue.ServerLostError("lost")

    async def program() -> None:
        if end == "put":
            await client.put_async(2)
        waiting = asyncio.create_task(client.put_async(3) if end == "put" else client.get_async())
        await until(lambda: own.stats()[-3 if end == "put" else -2] == 1)
        with monkeypatch.context() as patch:
            patch.setattr(client, "_take_back", lost)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    run(program)


def test_one_cancelled_twice_keeps_the_turn_while_its_thread_works(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, client = told
    take_back = client._take_back
    begun, going = threading.Event(), threading.Event()

    def slow(*arguments: Any, **named: Any) -> Any:
        begun.set()
        assert going.wait(LIMIT)
        return take_back(*arguments, **named)

    async def program() -> None:
        assert own.get(LIMIT) == 1
        await client.put_async(2)
        monkeypatch.setattr(client, "_take_back", slow)
        waiting = asyncio.create_task(client.put_async(3))
        await until(lambda: own.stats().waiting_producers == 1)
        waiting.cancel()
        await until(begun.is_set)
        waiting.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        held = client._producing._turn.holder is not None
        going.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert held
        assert own.get(LIMIT) == 2
        await client.put_async(4)
        assert await client.get_async(LIMIT) == 4

    run(program)


def test_a_closed_queue_wakes_coroutines(ends: Any) -> None:
    own, end = ends(capacity=1)

    async def program() -> None:
        getting = asyncio.create_task(end.get_async())
        await until(lambda: own.stats().waiting_consumers == 1)
        own.close()
        with pytest.raises(queue.ClosedError):
            await getting

    run(program)


@pytest.mark.parametrize("end", ["put", "get"])
def test_a_closed_end_wakes_coroutines(serve: Any, end: str) -> None:
    served = serve(capacity=1)

    channel = tensorwire.insecure_channel(served.target)
    client = queue.connect(channel, served.name)

    async def program() -> None:
        if end == "put":
            served.own.put(1)
            waiting = asyncio.create_task(client.put_async(2))
            await until(lambda: served.own.stats().waiting_producers == 1)
        else:
            waiting = asyncio.create_task(client.get_async())
            await until(lambda: served.own.stats().waiting_consumers == 1)
        if end == "put":
            client.close(drain=False)
        else:  # it speaks with the server first
            await asyncio.to_thread(client.close)
        done, _ = await asyncio.wait([waiting], timeout=LIMIT / 2)
        assert done == {waiting}
        with pytest.raises(queue.ClosedError):
            waiting.result()

    with channel:
        run(program)


def test_threads_and_coroutines_share_an_end(ends: Any) -> None:
    own, end = ends(capacity=1)

    async def program() -> None:
        got: list[int] = []
        thread = threading.Thread(target=lambda: got.append(end.get(LIMIT)))
        thread.start()
        await until(lambda: own.stats().waiting_consumers == 1)
        getting = asyncio.create_task(end.get_async(LIMIT))
        await asyncio.sleep(0)
        await end.put_async(1)
        await end.put_async(2)
        got.append(await getting)
        await asyncio.to_thread(thread.join)
        assert sorted(got) == [1, 2]

    run(program)


def test_one_client_in_one_loop_after_the_other(ends: Any) -> None:
    _, end = ends()
    for n in range(3):

        async def program(n: int = n) -> None:
            with pytest.raises(queue.EmptyError):
                await end.get_async(0.01)
            await end.put_async(n)
            assert await end.get_async(LIMIT) == n

        run(program)


def test_one_client_in_two_loops_at_once(serve: Any) -> None:
    served = serve()

    def wait(loop: asyncio.AbstractEventLoop) -> int:
        """How many descriptors the process has afterwards."""
        with pytest.raises(queue.EmptyError):
            loop.run_until_complete(client.get_async(0.001))
        return len(os.listdir("/proc/self/fd"))

    with served.connect() as client:
        loops = [asyncio.new_event_loop() for _ in range(2)]
        before = max([wait(loop) for loop in loops * 2])
        after = max([wait(loop) for loop in loops * 20])
        assert after < before + 10
        for n, loop in enumerate(loops):
            served.own.put(n)
            assert loop.run_until_complete(client.get_async(LIMIT)) == n
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
