# SPDX-License-Identifier: Apache-2.0
"""The lock of threads and coroutines."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.queue.conftest import LIMIT, until

from tensorwire.rpc.turn import Turn


def waiting(turn: Turn) -> int:
    return len(turn._waiters)


def test_threads_and_coroutines_get_it_in_their_order() -> None:
    turn = Turn()
    order: list[str] = []

    def thread(name: str) -> None:
        assert turn.acquire(name, LIMIT)
        order.append(name)
        turn.release(name)

    async def coroutine(name: str) -> None:
        assert await turn.acquire_async(name, LIMIT)
        order.append(name)
        turn.release(name)

    async def program() -> None:
        assert turn.acquire("first", 0)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(thread, "thread")
            until(lambda: waiting(turn) == 1)
            second = asyncio.create_task(coroutine("coroutine"))
            await asyncio.sleep(0)
            third = pool.submit(thread, "another thread")
            until(lambda: waiting(turn) == 3)
            turn.release("first")
            await second
            first.result(LIMIT)
            third.result(LIMIT)

    asyncio.run(program())
    assert order == ["thread", "coroutine", "another thread"]
    assert turn.acquire("last", 0)


def test_who_gives_up_leaves_the_line() -> None:
    turn = Turn()

    async def program() -> None:
        assert await turn.acquire_async("holder", 0)
        assert not turn.acquire("thread", 0.001)
        turn.release("thread")
        assert not await turn.acquire_async("coroutine", 0.001)
        turn.release("coroutine")
        assert waiting(turn) == 0
        turn.release("nobody")
        assert not turn.acquire("nobody", 0)
        turn.release("nobody")

        cancelled = asyncio.create_task(turn.acquire_async("cancelled", None))
        await asyncio.sleep(0)
        turn.release("holder")  # to the waiting one, which is cancelled before it hears of it
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert not turn.acquire("too early", 0)
        turn.release("too early")
        turn.release("cancelled")

    asyncio.run(program())
    assert turn.acquire("last", 0)
