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
        assert turn.acquire(LIMIT)
        order.append(name)
        turn.release()

    async def coroutine(name: str) -> None:
        assert await turn.acquire_async(LIMIT)
        order.append(name)
        turn.release()

    async def program() -> None:
        assert turn.acquire(0)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(thread, "thread")
            until(lambda: waiting(turn) == 1)
            second = asyncio.create_task(coroutine("coroutine"))
            await asyncio.sleep(0)
            third = pool.submit(thread, "another thread")
            until(lambda: waiting(turn) == 3)
            turn.release()
            await second
            first.result(LIMIT)
            third.result(LIMIT)

    asyncio.run(program())
    assert order == ["thread", "coroutine", "another thread"]
    assert turn.acquire(0)


def test_who_gives_up_leaves_the_line() -> None:
    turn = Turn()

    async def program() -> None:
        assert await turn.acquire_async(0)
        assert not turn.acquire(0.001)
        assert not await turn.acquire_async(0.001)
        cancelled = asyncio.create_task(turn.acquire_async(None))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert waiting(turn) == 0

        cancelled = asyncio.create_task(turn.acquire_async(None))
        await asyncio.sleep(0)
        turn.release()  # to the waiting one, which is cancelled before it hears of it
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    asyncio.run(program())
    assert turn.acquire(0)
