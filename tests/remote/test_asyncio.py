# SPDX-License-Identifier: Apache-2.0
"""The same in an event loop, which goes on meanwhile."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from tests.remote.pairs import PATIENCE, Pair, pair

from tensorwire import remote
from tensorwire.remote import Add, Rights, awaited, loops, watcher
from tensorwire.tensors import TensorSpec


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

    asyncio.run(program())  # begins the one that waits for the signals of all loops
    exposed.signal.set(0)
    before = threading.active_count()
    assert asyncio.run(program()) <= before  # one of another test may have ended


def test_a_wait_is_cancelled(shared: Pair) -> None:
    exposed, _ = shared.opened(4)

    async def program() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(exposed.signal.reached(1), 0.01)

    asyncio.run(program())
    assert not watcher._watcher.get()._watches


def test_a_wait_ends_with_the_memory(shared: Pair) -> None:
    exposed, _ = shared.opened(4)

    async def program() -> None:
        waiting = asyncio.ensure_future(exposed.signal.reached(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        exposed.conceal()
        with pytest.raises(remote.NotFoundError, match="concealed"):
            await waiting

    asyncio.run(asyncio.wait_for(program(), PATIENCE))


def test_nobody_looks_again_and_again(shared: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends and signals are told of; nor does what was begun in the loop take threads."""
    exposed, tensor = shared.opened((4, 1 << 16), "uint64")
    rows = np.arange(4)

    def refused(*_: object) -> None:
        raise AssertionError("a wait by time or by a thread")

    async def program() -> None:
        waiting = asyncio.ensure_future(exposed.signal.reached(3))
        values = np.arange(4 << 16, dtype=np.uint64).reshape(4, -1)
        await tensor.start_write(values, signal=Add())
        await tensor.scatter_async(rows, values, signal=Add(2))
        assert await waiting == 3
        np.testing.assert_array_equal(await tensor.gather_async(rows[::-1]), values[::-1])
        assert await tensor.fetch_add_async((1, 0), 5) == 1 << 16
        assert await tensor.compare_swap_async((1, 0), (1 << 16) + 5, 7) == (1 << 16) + 5
        assert await tensor.compare_swap_async((1, 0), 0, 1) == 7

    monkeypatch.setattr(asyncio, "sleep", refused)
    monkeypatch.setattr(asyncio, "to_thread", refused)
    asyncio.run(asyncio.wait_for(program(), PATIENCE))
    assert exposed.array[1, 0] == 7


def test_what_nobody_awaits_leaves_nothing(shared: Pair) -> None:
    _, tensor = shared.opened(4)

    async def program() -> None:
        for turn in range(20):
            tensor.start_write(np.full(4, turn, np.float32))
        await tensor.start_read(np.empty(4, np.float32))
        while (found := loops._loops.get().of(asyncio.get_running_loop()))._expected:
            await asyncio.sleep(0)
        there.device.close()
        with pytest.raises(remote.RemoteError):
            other.start_read(np.empty(4, np.float32))
        assert not found._expected

    with pair("tcp") as there:
        other = there.opened(4)[1]
        asyncio.run(asyncio.wait_for(program(), PATIENCE))


def test_what_was_begun_elsewhere_is_awaited() -> None:
    """Before the loop ran, or in another one."""
    with pair("tcp") as there:
        exposed, tensor = there.opened(1 << 20, "uint8")
        exposed.array[:] = 3
        outs = [np.empty(1 << 20, np.uint8) for _ in range(2)]
        begun = [tensor.start_read(outs[0])]

        async def begin() -> None:
            begun.append(tensor.start_read(outs[1]))

        async def program() -> None:
            for each in begun:
                await each
                await each

        asyncio.run(begin())
        asyncio.run(asyncio.wait_for(program(), PATIENCE))
        assert all((out == 3).all() for out in outs)


class _Never:
    """An operation that does not end."""

    ended = False

    def wait(self, timeout: float | None) -> bool:
        assert timeout is not None
        return False


def test_an_operation_does_not_end_in_time(shared: Pair) -> None:
    never: Any = _Never()
    peer = shared.device.peer.native

    async def program() -> None:
        for operation in (
            remote.Operation.begin(peer, lambda **_: never, ()),
            remote.Operation.begin(peer, lambda **_: never, (999,)),
        ):
            with pytest.raises(remote.DeadlineExceededError, match="goes on"):
                await operation.wait_async(0.01)

    asyncio.run(asyncio.wait_for(program(), PATIENCE))


def test_tensors_are_opened_and_allocated(shared: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    exposed = shared.host.empty(4, rights=Rights.READ, name="opened in a loop")
    before = set(shared.host._allocations)
    allocate = shared.host.allocate
    asked, cancelled, given_back = (threading.Event() for _ in range(3))

    def late(*arguments: Any) -> Any:
        asked.set()
        assert cancelled.wait(PATIENCE)
        return allocate(*arguments)

    def freed(*arguments: Any) -> None:
        give_back(*arguments)
        given_back.set()

    async def program() -> None:
        with pytest.raises(remote.NotFoundError):
            await shared.device.open_async("nothing")
        with pytest.raises(TypeError):
            await shared.device.open_async(5)  # type: ignore[arg-type]
        tensor = await shared.device.open_async("opened in a loop")
        assert tensor.shape == (4,)
        assert (await shared.device.open_async(tensor[1:].handle)).shape == (3,)
        allocated = await shared.device.allocate_async((2, 3), "int16")
        assert allocated.read().tolist() == [[0] * 3] * 2
        await asyncio.to_thread(allocated.close)
        with pytest.raises(remote.ResourceExhaustedError):
            await shared.device.allocate_async(1 << 30)

        monkeypatch.setattr(shared.host, "allocate", late)
        allocating = asyncio.ensure_future(shared.device.allocate_async(4))
        await asyncio.sleep(0)
        await asyncio.to_thread(asked.wait, PATIENCE)
        allocating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await allocating

    give_back = shared.host.give_back
    asyncio.run(asyncio.wait_for(program(), PATIENCE))
    monkeypatch.setattr(shared.host, "give_back", freed)
    cancelled.set()
    assert given_back.wait(PATIENCE)
    assert set(shared.host._allocations) == before
    exposed.conceal()


STATIC = TensorSpec((4, 5), "float32")
DYNAMIC = TensorSpec((None, 5), "float32")


def item(turn: int, rows: int = 4) -> Any:
    return np.full((rows, 5), turn, np.float32)


@pytest.mark.parametrize("spec", [STATIC, DYNAMIC], ids=str)
def test_a_channel_from_coroutine_to_coroutine(shared: Pair, spec: TensorSpec) -> None:
    sizes = [4] * 30 if spec is STATIC else [turn * 7 % 11 for turn in range(30)]

    async def put() -> None:
        for turn, rows in enumerate(sizes):
            await sender.put_async(item(turn, rows), timeout=PATIENCE)
        await asyncio.to_thread(sender.close)

    async def get() -> None:
        with pytest.raises(remote.DeadlineExceededError):
            await receiver.get_async(timeout=0.0)
        waiting = asyncio.ensure_future(receiver.get_async())
        await asyncio.sleep(0)
        with pytest.raises(remote.DeadlineExceededError, match="another thread or coroutine"):
            await receiver.get_async(timeout=0.01)
        waiting.cancel()  # and takes nothing with it
        with pytest.raises(asyncio.CancelledError):
            await waiting
        sending = asyncio.ensure_future(put())
        for turn, rows in enumerate(sizes):
            found = await receiver.get_async(timeout=PATIENCE)
            np.testing.assert_array_equal(found, item(turn, rows))
            del found
        with pytest.raises(remote.ChannelClosedError):
            await receiver.get_async()
        await sending

    with (
        remote.receiver(shared.host, "a", spec, depth=3) as receiver,
        remote.sender(shared.device, "a") as sender,
    ):
        asyncio.run(asyncio.wait_for(get(), PATIENCE))


def test_all_of_a_device_in_coroutines(shared: Pair) -> None:
    exposed = shared.host.empty((20, 1000), rights=Rights.READ | Rights.WRITE)
    transport: Any = shared.device.peer.transport

    async def program() -> None:
        device = await remote.connect_async(shared.target, transport=transport, timeout=PATIENCE)
        tensor = await device.open_async(exposed.handle)
        for turn in range(20):
            tensor[turn].start_write(np.full(1000, turn, np.float32))
        await device.flush_async(PATIENCE)
        assert exposed.array[:, 7].tolist() == [*range(20)]
        await device.flush_async()
        sender = await remote.sender_async(device, "a", timeout=PATIENCE)
        with pytest.raises(remote.AlreadyExistsError):
            await remote.sender_async(device, "a", timeout=PATIENCE)
        await sender.put_async(item(3))
        await sender.close_async()
        await device.close_async()
        assert not device.peer.alive
        with pytest.raises(remote.PeerLostError):
            await device.flush_async()

    with remote.receiver(shared.host, "a", STATIC) as receiver:
        asyncio.run(asyncio.wait_for(program(), PATIENCE))
        np.testing.assert_array_equal(receiver.get(timeout=PATIENCE), item(3))
    exposed.conceal()
    with pytest.raises(ValueError, match="none is permitted"):
        asyncio.run(remote.connect_async(shared.target, transport="grpc"))


def test_a_device_that_nobody_waits_for_any_more_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[remote.Device] = []
    begun, cancelled = threading.Event(), threading.Event()
    connect = remote.connect

    def slowly(*args: Any, **options: Any) -> remote.Device:
        made.append(connect(*args, **options))
        begun.set()
        assert cancelled.wait(PATIENCE)
        return made[0]

    async def program() -> None:
        connecting = asyncio.ensure_future(remote.connect_async(there.target, transport="tcp"))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        assert made[0].peer.alive
        cancelled.set()

    monkeypatch.setattr("tensorwire.remote.device.connect", slowly)
    with pair("tcp") as there:
        asyncio.run(program())  # which waits for its threads
        assert not made[0].peer.alive
        assert there.device.peer.alive


def test_what_the_loop_has_not_heard_of_is_discarded_too() -> None:
    there = threading.Event()
    discarded: SimpleQueue[int] = SimpleQueue()

    def make() -> int:
        there.set()
        return 7

    async def program() -> None:
        making = asyncio.ensure_future(awaited.made(make, discarded.put))
        await asyncio.sleep(0)
        assert there.wait(PATIENCE)  # the loop stands still meanwhile
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making

    asyncio.run(program())
    assert discarded.get(timeout=PATIENCE) == 7
    assert discarded.empty()


@pytest.mark.parametrize("ends", ["receiver", "sender"])
def test_coroutines_learn_of_the_end_of_a_channel(shared: Pair, ends: str) -> None:
    async def program() -> None:
        await sender.put_async(item(0))
        held = await receiver.get_async()
        waiting = asyncio.ensure_future(receiver.get_async())
        blocked = asyncio.ensure_future(sender.put_async(item(1)))
        await asyncio.sleep(0)
        with pytest.raises(remote.DeadlineExceededError, match="another put"):
            await sender.put_async(item(2), timeout=0.0)
        if ends == "receiver":
            receiver.close()
            with pytest.raises(remote.NotFoundError):
                await blocked
            with pytest.raises(remote.NotFoundError):
                await waiting
        else:
            await asyncio.to_thread(sender.close)
            with pytest.raises(remote.RemoteError, match="the sender was closed"):
                await blocked
            with pytest.raises(remote.ChannelClosedError):
                await waiting
        assert (held == 0).all()

    receiver = remote.receiver(shared.host, "a", STATIC, depth=1)
    sender = remote.sender(shared.device, "a")
    asyncio.run(asyncio.wait_for(program(), PATIENCE))
    sender.close()
    receiver.close()


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


@pytest.mark.parametrize("awaited", [False, True])
def test_a_loop_that_ends_before_its_operations_is_let_go(awaited: bool) -> None:
    ended: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    def start(**_: object) -> Any:
        """Something that does not end."""
        return object()

    async def program() -> None:
        _, ending = loops.begin(start, lambda: False)
        assert ending is not None
        if awaited:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(ending.wait(), 0)
            waiting = asyncio.create_task(ending.wait())
            await asyncio.sleep(0)
            assert not waiting.done()  # it is cancelled with the loop
        ended.append(weakref.ref(asyncio.get_running_loop()))

    for _ in range(4):
        asyncio.run(program())
    gc.collect()
    assert [each() for each in ended[:-1]] == [None] * 3  # the last one goes with the next
    asyncio.run(program())
    gc.collect()
    assert ended[-2]() is None
