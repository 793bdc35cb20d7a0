# SPDX-License-Identifier: Apache-2.0
"""The same in an event loop, which goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from tests.remote.pairs import PATIENCE, Pair, pair

from tensorwire import remote
from tensorwire.remote import Add, Rights


def test_operations_are_awaited(shared: Pair) -> None:
    exposed, tensor = shared.opened((16, 1000))
    source = np.random.default_rng(4).random((16, 1000), np.float32)
    out = np.empty_like(source)

    async def program() -> None:
        await asyncio.gather(*(_await(tensor[row].start_write(source[row])) for row in range(16)))
        await tensor.start_read(out)
        batch = shared.device.batch()
        batch.write(tensor, -source)
        batch.signal(tensor, Add())
        await batch.prepare().start()

    async def _await(operation: remote.Operation) -> None:
        await operation

    asyncio.run(asyncio.wait_for(program(), PATIENCE))
    np.testing.assert_array_equal(out, source)
    np.testing.assert_array_equal(exposed.array, -source)


def test_signals_are_awaited(shared: Pair) -> None:
    exposed, tensor = shared.opened(4)

    async def program() -> int:
        waiting = asyncio.ensure_future(exposed.signal.reached(2, PATIENCE))
        await tensor.start_write(np.ones(4, np.float32), signal=Add())
        await asyncio.sleep(0)
        assert not waiting.done()
        await tensor.start_write(np.ones(4, np.float32), signal=Add())
        found: int = await waiting
        return found

    assert asyncio.run(program()) == 2
    with pytest.raises(remote.DeadlineExceededError):
        asyncio.run(exposed.signal.reached(3, 0.0))


def test_many_waits_take_no_thread_and_each_has_its_turn(shared: Pair) -> None:
    exposed, tensor = shared.opened(4)
    values = range(1, 41)

    async def program() -> int:
        waiting = {n: asyncio.ensure_future(exposed.signal.reached(n, PATIENCE)) for n in values}
        for n in values:
            await tensor.start_write(np.full(4, n, np.float32), signal=Add())
            assert await waiting[n] == n
            assert [each for each in values if waiting[each].done()] == [*range(1, n + 1)]
        return threading.active_count()

    before = threading.active_count()
    assert asyncio.run(program()) <= before  # one of another test may have ended


def test_a_wait_is_cancelled(shared: Pair) -> None:
    exposed, _ = shared.opened(4)

    async def program() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(exposed.signal.reached(1), 0.01)

    asyncio.run(program())


def test_failures_are_raised_where_they_are_awaited() -> None:
    with pair("tcp") as there:
        exposed = there.host.empty(1 << 22, "uint8", rights=Rights.READ | Rights.WRITE)
        tensor = there.device.open(exposed.handle)
        out = np.empty(1 << 22, np.uint8)

        async def program() -> None:
            reads = [tensor.start_read(out) for _ in range(4)]
            there.device.close()
            results = await asyncio.gather(*(_await(read) for read in reads))
            assert set(results) <= {"", "lost"}
            assert results[-1] == "lost"
            waiting = exposed.signal.reached(1, PATIENCE)
            with pytest.raises(remote.PeerLostError):
                await waiting

        async def _await(operation: remote.Operation) -> str:
            try:
                await operation
            except remote.PeerLostError:
                return "lost"
            return ""

        asyncio.run(asyncio.wait_for(program(), PATIENCE))
