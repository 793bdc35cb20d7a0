# SPDX-License-Identifier: Apache-2.0
"""Channels: tensors of a fixed shape into slots, others by a notice and a read."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from ast import literal_eval
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import pytest
from tests import forked
from tests.remote.pairs import PATIENCE, Pair, ending, pair
from tests.weights.other import eventually

from tensorwire import remote
from tensorwire.remote import messages
from tensorwire.remote.operation import Operation
from tensorwire.remote.receiver import Receiver
from tensorwire.tensors import TensorSpec

STATIC = TensorSpec((4, 5), "float32")
DYNAMIC = TensorSpec((None, 5), "float32")


def item(turn: int, rows: int = 4) -> Any:
    return np.full((rows, 5), turn, np.float32)


@pytest.mark.parametrize("spec", [STATIC, DYNAMIC], ids=str)
def test_tensors_come_in_their_order(shared: Pair, spec: TensorSpec) -> None:
    with (
        remote.receiver(shared.host, "c", spec, depth=3) as receiver,
        remote.sender(shared.device, "c") as sender,
        futures.ThreadPoolExecutor(1) as pool,
    ):
        assert sender.spec == receiver.spec == spec
        sizes = [4] * 40 if spec is STATIC else [turn * 7 % 11 for turn in range(40)]

        def put() -> None:
            for turn, rows in enumerate(sizes):
                sender.put(item(turn, rows), timeout=PATIENCE)
            sender.close()

        sending = pool.submit(put)
        for turn, rows in enumerate(sizes):
            np.testing.assert_array_equal(receiver.get(timeout=PATIENCE), item(turn, rows))
        with pytest.raises(remote.ChannelClosedError):
            receiver.get(timeout=PATIENCE)
        sending.result(PATIENCE)
        with pytest.raises(remote.RemoteError, match="was closed"):
            sender.put(item(1))


@pytest.mark.parametrize("shape", [(4, 5), (0, 5)], ids=str)
def test_who_waits_for_a_slot_hears_that_the_receiver_has_ended(
    shared: Pair, shape: tuple[int, ...]
) -> None:
    receiver = remote.receiver(shared.host, "c", TensorSpec(shape, "float32"), depth=2)
    with remote.sender(shared.device, "c") as sender, futures.ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            sender.put(np.zeros(shape, np.float32))
        waiting = pool.submit(sender.put, np.zeros(shape, np.float32), timeout=PATIENCE)
        receiver.close()
        with pytest.raises(remote.NotFoundError, match="has ended"):
            waiting.result(PATIENCE)


def test_scalars_come_as_scalars(shared: Pair) -> None:
    _scalars(shared, "numpy")


def test_scalars_come_as_those_of_frameworks(shared: Pair) -> None:
    pytest.importorskip("torch")
    _scalars(shared, "torch")


def _scalars(shared: Pair, framework: Any) -> None:
    spec = TensorSpec((), "float32")
    with (
        remote.receiver(shared.host, "c", spec, depth=2) as receiver,
        remote.sender(shared.device, "c") as sender,
    ):
        for turn in range(5):
            sender.put(np.array(turn, np.float32), timeout=PATIENCE)
            found = receiver.get(framework=framework, timeout=PATIENCE)
            assert tuple(found.shape) == ()
            assert float(found) == turn
            del found
        sender.put(np.float32(3), timeout=PATIENCE)
        held = receiver.get(framework=framework, timeout=PATIENCE)
        sender.put(np.float32(4), timeout=PATIENCE)
        with pytest.raises(remote.DeadlineExceededError, match="no slot in time"):
            sender.put(np.float32(5), timeout=0.02)  # that of the first one is in use
        assert float(held) == 3


def test_scalars_are_put_in_coroutines(shared: Pair) -> None:
    with (
        remote.receiver(shared.host, "c", TensorSpec((), "int64")) as receiver,
        remote.sender(shared.device, "c") as sender,
    ):

        async def both() -> Any:
            await sender.put_async(np.int64(7), timeout=PATIENCE)
            return await receiver.get_async(timeout=PATIENCE)

        assert asyncio.run(both()).item() == 7


def test_a_slot_goes_back_with_the_last_view(shared: Pair) -> None:
    with (
        remote.receiver(shared.host, "c", STATIC, depth=2) as receiver,
        remote.sender(shared.device, "c") as sender,
    ):
        sender.put(item(0))
        sender.put(item(1))
        first, second = receiver.get(timeout=PATIENCE), receiver.get(timeout=PATIENCE)
        row = first[2]
        del first, second  # the second one is free, behind one that is not
        gc.collect()
        with pytest.raises(remote.DeadlineExceededError, match="no slot in time"):
            sender.put(item(2), timeout=0.02)
        assert (row == 0).all()
        del row
        gc.collect()
        sender.put(item(2), timeout=PATIENCE)
        sender.put(item(3), timeout=PATIENCE)
        assert (receiver.get(timeout=PATIENCE) == 2).all()
        assert (receiver.get(timeout=PATIENCE) == 3).all()


@pytest.mark.parametrize("spec", [STATIC, DYNAMIC], ids=str)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_once_it_is_set_up_a_channel_sends_no_message(transport: Any, spec: TensorSpec) -> None:
    """Writes and reads of memory, whose owner is asked nothing, and a word for each tensor."""
    counted = ("messages_sent", "messages_received", "calls", "frames_sent_eager", "ready_to_sends")

    def counts() -> list[list[object]]:
        both = there.device.peer.stats(), *there.server.stats()
        return [[each[name] for name in counted] for each in both]

    with (
        pair(transport) as there,
        remote.receiver(there.host, "c", spec, depth=2) as receiver,
        remote.sender(there.device, "c") as sender,
    ):
        for turn in range(20):
            if turn == 2:  # the memory of what varies was placed with the first
                before = counts()
            sender.put(item(turn), timeout=PATIENCE)
            np.testing.assert_array_equal(receiver.get(timeout=PATIENCE), item(turn))
        assert counts() == before
        assert len(before) == 2


def test_what_is_put_may_be_changed_afterwards(shared: Pair) -> None:
    with (
        remote.receiver(shared.host, "c", DYNAMIC, depth=2) as receiver,
        remote.sender(shared.device, "c") as sender,
    ):
        value = item(1)
        sender.put(value)
        value[:] = -1
        assert (receiver.get(timeout=PATIENCE) == 1).all()


def test_a_put_that_has_found_no_time_leaves_the_channel_as_it_was(
    shared: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger tensors take the place of memory that was placed for smaller ones."""
    with (
        remote.receiver(shared.host, "c", DYNAMIC, depth=1) as receiver,
        remote.sender(shared.device, "c") as sender,
    ):
        sender.put(item(0, 2))
        assert (receiver.get(timeout=PATIENCE) == 0).all()

        def late(*_: object) -> None:
            raise remote.DeadlineExceededError("no answer in time")

        with monkeypatch.context() as patch:
            patch.setattr(remote.Device, "_ask", late)
            with pytest.raises(remote.DeadlineExceededError):
                sender.put(item(1, 200), timeout=PATIENCE)
        for turn, rows in ((2, 2), (3, 200)):
            sender.put(item(turn, rows), timeout=PATIENCE)
            found = receiver.get(timeout=PATIENCE)
            np.testing.assert_array_equal(found, item(turn, rows))


@pytest.mark.parametrize("failure", [remote.DeadlineExceededError("late"), KeyboardInterrupt()])
def test_a_get_that_ends_while_it_reads_leaves_the_tensor_to_the_next(
    shared: Pair, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    with (
        remote.receiver(shared.host, "c", DYNAMIC, depth=1) as receiver,
        remote.sender(shared.device, "c") as sender,
    ):

        def fails(*_: object) -> None:
            raise failure

        for turn in range(3):
            sender.put(item(turn), timeout=PATIENCE)
            for _ in range(2):
                with monkeypatch.context() as patch:
                    patch.setattr(Operation, "wait", fails)
                    with pytest.raises(type(failure)) as raised:
                        receiver.get(timeout=PATIENCE)
            if isinstance(failure, remote.DeadlineExceededError):
                assert "the next get waits on" in str(raised.value)
            with pytest.raises(remote.DeadlineExceededError, match="no slot"):
                sender.put(item(9), timeout=0.0)  # it is not given back before it was read
            np.testing.assert_array_equal(receiver.get(timeout=PATIENCE), item(turn))


def test_a_get_that_is_cancelled_while_it_reads_leaves_the_tensor_to_the_next(
    shared: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        remote.receiver(shared.host, "c", DYNAMIC, depth=1) as receiver,
        remote.sender(shared.device, "c") as sender,
    ):
        sender.put(item(3), timeout=PATIENCE)

        async def cancelled() -> None:
            reading = asyncio.Event()

            async def never(*_: object) -> None:
                reading.set()
                await asyncio.Event().wait()

            with monkeypatch.context() as patch:
                patch.setattr(Operation, "wait_async", never)
                getting = asyncio.create_task(receiver.get_async(timeout=PATIENCE))
                await asyncio.wait_for(reading.wait(), PATIENCE)
                getting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await getting

        asyncio.run(cancelled())
        np.testing.assert_array_equal(receiver.get(timeout=PATIENCE), item(3))
        sender.put(item(4), timeout=PATIENCE)
        np.testing.assert_array_equal(receiver.get(timeout=PATIENCE), item(4))


@pytest.mark.parametrize(
    ("spec", "step"),
    [(STATIC, "finalize"), (DYNAMIC, "_give_back"), (DYNAMIC, "_reading")],
    ids=str,
)
def test_an_interrupted_get_keeps_no_slot(
    shared: Pair, monkeypatch: pytest.MonkeyPatch, spec: TensorSpec, step: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with (
        remote.receiver(shared.host, "c", spec, depth=1) as receiver,
        remote.sender(shared.device, "c") as sender,
    ):
        sender.put(item(0), timeout=PATIENCE)
        with monkeypatch.context() as patch:
            patch.setattr(weakref if step == "finalize" else Receiver, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                receiver.get(timeout=PATIENCE)
        assert (receiver.get(timeout=PATIENCE) == 0).all()
        sender.put(item(1), timeout=PATIENCE)
        assert (receiver.get(timeout=PATIENCE) == 1).all()


def test_one_sender_at_a_time(shared: Pair) -> None:
    with remote.receiver(shared.host, "c", STATIC) as receiver:
        with pytest.raises(remote.AlreadyExistsError):
            remote.receiver(shared.host, "c", STATIC)
        with remote.connect(shared.target) as other:
            first = remote.sender(other, "c")
            with pytest.raises(remote.AlreadyExistsError, match="has a sender"):
                remote.sender(shared.device, "c")
            first.put(item(7))
        # Lost without a word: what it has put is there, and then it is said.
        assert (receiver.get(timeout=PATIENCE) == 7).all()
        with pytest.raises(remote.PeerLostError):
            receiver.get(timeout=PATIENCE)
        with remote.sender(shared.device, "c") as sender:
            for turn in range(5):
                sender.put(item(turn), timeout=PATIENCE)
                assert (receiver.get(timeout=PATIENCE) == turn).all()
    with pytest.raises(remote.NotFoundError, match="no channel 'c'"):
        remote.sender(shared.device, "c")


@pytest.mark.parametrize("spec", [STATIC, DYNAMIC], ids=str)
def test_a_sender_learns_of_the_end_of_its_receiver(shared: Pair, spec: TensorSpec) -> None:
    receiver = remote.receiver(shared.host, "c", spec, depth=1)
    sender = remote.sender(shared.device, "c")
    sender.put(item(0))
    with futures.ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(sender.put, item(1))
        receiver.close()
        with pytest.raises(remote.NotFoundError):
            blocked.result(PATIENCE)
    with pytest.raises(remote.NotFoundError):
        receiver.get(timeout=PATIENCE)
    sender.close()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_close_that_has_found_no_time_ends_the_channel(transport: Any) -> None:
    """What was not read is lost, and another sender may come."""
    with pair(transport) as there, remote.receiver(there.host, "c", DYNAMIC) as receiver:
        sender = remote.sender(there.device, "c")
        sender.put(item(0), timeout=PATIENCE)
        with pytest.raises(remote.DeadlineExceededError, match="has not read all"):
            sender.close(timeout=0.01)
        sender.close(PATIENCE)
        with pytest.raises(remote.NotFoundError):
            receiver.get(timeout=PATIENCE)
        with pytest.raises(remote.ChannelClosedError):
            receiver.get(timeout=PATIENCE)
        with remote.sender(there.device, "c") as again:
            again.put(item(1), timeout=PATIENCE)
            np.testing.assert_array_equal(receiver.get(timeout=PATIENCE), item(1))


@pytest.mark.parametrize("spec", [STATIC, DYNAMIC], ids=str)
def test_a_close_whose_answer_is_late_goes_on(
    shared: Pair, monkeypatch: pytest.MonkeyPatch, spec: TensorSpec
) -> None:
    go = threading.Event()
    detach = remote.Host.detach

    def late(*arguments: Any) -> None:
        assert go.wait(PATIENCE)
        detach(*arguments)

    with remote.receiver(shared.host, "c", spec) as receiver:
        sender = remote.sender(shared.device, "c")
        monkeypatch.setattr(remote.Host, "detach", late)
        for _ in range(2):
            with pytest.raises(remote.DeadlineExceededError):
                sender.close(timeout=0.01)
        go.set()
        sender.close(PATIENCE)
        with pytest.raises(remote.ChannelClosedError):
            receiver.get(timeout=PATIENCE)
        remote.sender(shared.device, "c").close()
        sender.close(PATIENCE)  # it is no other one's end


@pytest.mark.parametrize("interrupt", [False, True], ids=["late", "interrupt"])
def test_a_sender_that_comes_late_is_none(
    shared: Pair, monkeypatch: pytest.MonkeyPatch, interrupt: bool
) -> None:
    go, done = threading.Event(), threading.Event()
    attach = remote.Host.attach

    def late(*arguments: Any) -> Any:
        assert go.wait(PATIENCE)
        try:
            return attach(*arguments)
        finally:
            done.set()

    with remote.receiver(shared.host, "c", STATIC) as receiver:
        with monkeypatch.context() as patch:
            patch.setattr(remote.Host, "attach", late)
            with ending(interrupt):
                remote.sender(shared.device, "c", timeout=0.01)
            go.set()
            assert done.wait(PATIENCE)
        eventually(lambda: receiver._last is not None)
        with remote.sender(shared.device, "c") as sender:
            sender.put(item(1), timeout=PATIENCE)
            np.testing.assert_array_equal(receiver.get(timeout=PATIENCE), item(1))


@pytest.mark.parametrize("spec", [STATIC, DYNAMIC], ids=str)
def test_a_close_after_the_end_of_its_receiver_is_no_other_senders(
    shared: Pair, spec: TensorSpec
) -> None:
    first = remote.receiver(shared.host, "c", spec)
    late = remote.sender(shared.device, "c")
    first.close()
    with (
        remote.receiver(shared.host, "c", spec) as receiver,
        remote.sender(shared.device, "c") as sender,
    ):
        late.close()
        sender.put(item(1), timeout=PATIENCE)
        np.testing.assert_array_equal(receiver.get(timeout=PATIENCE), item(1))
        with pytest.raises(remote.DeadlineExceededError):
            receiver.get(timeout=0.0)  # and not ChannelClosedError


def test_each_of_several_threads_ends_in_time(shared: Pair) -> None:
    with (
        futures.ThreadPoolExecutor(1) as pool,
        remote.receiver(shared.host, "c", STATIC, depth=1) as receiver,
        remote.sender(shared.device, "c") as sender,
    ):
        getting = pool.submit(receiver.get)
        eventually(lambda: receiver._turn.holder is not None)
        with pytest.raises(remote.DeadlineExceededError, match="another thread"):
            receiver.get(timeout=0.01)
        sender.put(item(0))
        held = getting.result(PATIENCE)
        blocked = pool.submit(sender.put, item(1))
        eventually(lambda: sender._turn.holder is not None)
        with pytest.raises(remote.DeadlineExceededError, match="another put"):
            sender.put(item(2), timeout=0.01)
        with pytest.raises(remote.DeadlineExceededError, match="close again"):
            sender.close(timeout=0.0)
        sender.close(PATIENCE)
        with pytest.raises(remote.RemoteError, match="the sender was closed"):
            blocked.result(PATIENCE)
        assert (held == 0).all()
        with pytest.raises(remote.ChannelClosedError):
            receiver.get(timeout=PATIENCE)


def test_a_sender_learns_of_the_end_of_the_process() -> None:
    with pair("tcp") as there:
        remote.receiver(there.host, "c", STATIC, depth=1)
        sender = remote.sender(there.device, "c")
        sender.put(item(0))
        with futures.ThreadPoolExecutor(1) as pool:
            blocked = pool.submit(sender.put, item(1))
            there.server.stop(None)
            with pytest.raises(remote.PeerLostError):
                blocked.result(PATIENCE)
        sender.close()


def test_what_the_channel_is_not_for(shared: Pair) -> None:
    with (
        remote.receiver(shared.host, "c", DYNAMIC, max_bytes=400) as receiver,
        remote.sender(shared.device, "c") as sender,
    ):
        for wrong, error in (
            (np.zeros((4, 5)), TypeError),
            (np.zeros((4, 6), np.float32), ValueError),
            (np.zeros(4, np.float32), ValueError),
            ("text", TypeError),
            (np.zeros((100, 5), np.float32), remote.ResourceExhaustedError),
        ):
            with pytest.raises(error):
                sender.put(wrong)
        with pytest.raises(remote.DeadlineExceededError):
            receiver.get(timeout=0.0)
    for spec, depth in ((TensorSpec(None, "int8"), 2), (TensorSpec((3,)), 2), (STATIC, 0)):
        with pytest.raises(ValueError, match="a channel"):
            remote.receiver(shared.host, "c", spec, depth=depth)


def test_sizes_of_a_channel_are_whole_numbers(shared: Pair) -> None:
    wrong: Any
    for wrong, error in (
        ({"max_bytes": 1e9}, TypeError),
        ({"max_bytes": -1}, ValueError),
        ({"max_bytes": True}, TypeError),
        ({"depth": 2.0}, TypeError),
    ):
        with pytest.raises(error):
            remote.receiver(shared.host, "c", DYNAMIC, **wrong)
    sizes: Any = {"max_bytes": np.int64(400), "depth": np.int32(2)}
    with (
        remote.receiver(shared.host, "c", DYNAMIC, **sizes) as receiver,
        remote.sender(shared.device, "c") as sender,
    ):
        sender.put(item(1), timeout=PATIENCE)
        np.testing.assert_array_equal(receiver.get(timeout=PATIENCE), item(1))


@pytest.mark.parametrize(
    ("notice", "said"),
    [
        (b"\xff" * 100, "no Notice"),
        (messages.encode(messages.Notice((4, 6), 0)), r"expected a tensor float32\[\*, 5\]"),
        (messages.encode(messages.Notice((1 << 40, 5), 0)), "max_bytes"),
        (messages.encode(messages.Notice((4, 5), 999)), "no region 999"),
    ],
)
def test_a_notice_that_is_wrong_is_dropped(shared: Pair, notice: bytes, said: str) -> None:
    """By a sender that is none of ours."""
    with (
        remote.receiver(shared.host, "c", DYNAMIC) as receiver,
        remote.sender(shared.device, "c") as sender,
    ):
        slot = np.frombuffer(len(notice).to_bytes(4, "little") + notice, np.uint8)
        sender._slots[0, : len(slot)].write(slot, signal=remote.Add())
        sender._sent += 1
        with pytest.raises(remote.RemoteError, match=said):
            receiver.get(timeout=PATIENCE)
        sender.put(item(3), timeout=PATIENCE)
        assert (receiver.get(timeout=PATIENCE) == 3).all()


def test_who_may_send(shared: Pair) -> None:
    with remote.receiver(shared.host, "c", STATIC, peers=[]):
        with pytest.raises(remote.PermissionDeniedError):
            remote.sender(shared.device, "c")
        call: Any = shared.device.peer.unary_unary(f"/{messages.SERVICE}/Detach")
        call(messages.encode(messages.Detach("c", 5)), timeout=PATIENCE)  # not its sender's
        with pytest.raises(grpc.RpcError):
            call(b"", timeout=PATIENCE)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((), "float32"), ((0, 4, 5), "float32"), ((2, 4, 6), "float32"), ((2, 4, 5), "int32")],
)
@pytest.mark.parametrize("spec", [STATIC, DYNAMIC], ids=str)
def test_slots_that_are_none_for_the_channel_are_not_believed(
    shared: Pair, monkeypatch: pytest.MonkeyPatch, spec: TensorSpec, shape: Any, dtype: str
) -> None:
    with remote.receiver(shared.host, "c", spec) as receiver:
        other = shared.host.empty(shape, dtype, rights=remote.Rights.WRITE)
        monkeypatch.setattr(receiver, "_slots", other)
        with pytest.raises(remote.RemoteError, match="no slots for it"):
            remote.sender(shared.device, "c")
        other.conceal()
        monkeypatch.undo()


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("transport", "latest"), [("shm", 3e-4), ("tcp", 1.5e-3)])
def test_ctrl_c_at_any_moment_of_a_put_leaves_a_tensor_whole(
    transport: str, latest: float, static: bool
) -> None:
    child = forked.start("tests.remote.interrupted", (transport, static, 300, 1500, latest), {})
    try:
        came, put, got = (literal_eval(child.stdout.readline()) for _ in range(3))
    finally:
        child.kill()
    assert came > 20  # of 1,500 at most; on a busy host most come between two puts
    numbers = [number for (number,) in got]
    assert numbers == sorted({*numbers}), "each once, in the order in which they were put"
    assert {*put} <= {*numbers}
