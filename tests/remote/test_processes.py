# SPDX-License-Identifier: Apache-2.0
"""Two processes, one of which is killed, stopped or forked, or takes its memory back."""

from __future__ import annotations

import gc
import os
import signal
import threading
from concurrent import futures
from typing import Any

import numpy as np
import pytest
from tests.forked import inherited
from tests.pausing import paused
from tests.remote.owner import away
from tests.remote.pairs import ALL, PATIENCE, pair
from tests.transports import HERE

from tensorwire import remote
from tensorwire.remote import Add, Rights
from tensorwire.tensors import TensorSpec

# Of JAX, where another test has imported it.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


@pytest.fixture(params=HERE)
def transport(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("name", ["made", "foreign"])
def test_another_process_is_read_and_written(transport: Any, name: str) -> None:
    with away() as owner, remote.connect(owner.target, transport=transport) as device:
        tensor = device.open(name)
        tensor[1:5].write(np.array([1, 2, 3, 4], np.uint8), signal=Add(3))
        assert owner.ask("wait", name, 3) == 3
        assert owner.ask("sum", name) == 10
        assert tensor[:6].read().tolist() == [0, 1, 2, 3, 4, 0]
        if name == "made":
            assert device.open(owner.handle).read().sum() == 10


@pytest.mark.parametrize("name", ["made", "foreign"])
def test_a_killed_owner_ends_what_is_under_way(transport: Any, name: str) -> None:
    """Nothing hangs, and what comes later fails at once."""
    size = 1 << 24
    with away(size) as owner, remote.connect(owner.target, transport=transport) as device:
        tensor = device.open(name)
        mine = device.allocate(8, "uint64")
        out = np.empty(size, np.uint8)
        begun = threading.Event()
        failures: list[BaseException] = []

        def work() -> None:
            try:
                while True:
                    tensor.read(out)
                    begun.set()
            except remote.RemoteError as error:
                failures.append(error)

        with futures.ThreadPoolExecutor(2) as pool:
            working = [pool.submit(work)]
            assert begun.wait(PATIENCE)
            owner.process.kill()
            for each in working:
                each.result(PATIENCE)
        assert [type(error) for error in failures] == [remote.PeerLostError]
        assert "127.0.0.1" in str(failures[0]) or "unix" in str(failures[0])
        row = np.zeros(size, np.uint8)
        for call in (
            lambda: tensor.read(out),
            lambda: tensor[::2].read(),
            lambda: tensor.write(row),
            lambda: tensor.write(row, signal=Add()),
            lambda: tensor.signal(Add()),
            lambda: tensor.start_read(out).wait(PATIENCE),
            lambda: tensor.gather([0]),
            lambda: mine.fetch_add(0, 1),
            lambda: mine.compare_swap(0, 0, 1),
            lambda: device.open("made"),
            lambda: device.allocate(4),
            lambda: device.flush(PATIENCE),
            device.fence,
        ):
            with pytest.raises(remote.PeerLostError):
                call()
        mine.close()
        with pytest.raises(remote.RemoteError):
            remote.connect(owner.target, timeout=0.2)


def test_a_stopped_owner(transport: Any) -> None:
    with away(1 << 22) as owner, remote.connect(owner.target, transport=transport) as device:
        tensor = device.open("made")
        born = device.open("born")
        way = device.path().way
        assert born.mapped == tensor.mapped == (way == "mapped")
        foreign = device.open("foreign")
        with paused(owner.process.pid):
            if way != "frames":  # it has no part in it
                assert (born.read(timeout=PATIENCE) == 3).all()
                assert born[5:1000:7].read(timeout=PATIENCE).tolist() == [3] * 143
                tensor.write(np.ones(1 << 22, np.uint8), signal=Add())
                assert tensor.read(timeout=PATIENCE).all()
                read = tensor.start_read(np.empty(1 << 22, np.uint8))
                assert read.done or way == "device"
                read.wait(PATIENCE)
            else:
                with pytest.raises(remote.DeadlineExceededError):
                    tensor.read(timeout=0.05)
            out = np.zeros(1 << 22, np.uint8)
            read = foreign.start_read(out)
            if way == "device":
                read.wait(PATIENCE)
                foreign[:8].write(np.ones(8, np.uint8), timeout=PATIENCE)
                device.flush(PATIENCE)
            else:
                with pytest.raises(remote.DeadlineExceededError, match="it goes on"):
                    read.wait(0.02)
                assert not read.done
                with pytest.raises(remote.DeadlineExceededError):
                    foreign[:8].write(np.ones(8, np.uint8), timeout=0.02)
                with pytest.raises(remote.DeadlineExceededError):
                    device.flush(0.02)
            with pytest.raises(remote.DeadlineExceededError):
                device.open("made", timeout=0.05)
        read.wait(PATIENCE)
        device.flush(PATIENCE)
        assert foreign[:9].read().tolist() == [1] * 8 + [0]


@pytest.mark.parametrize("name", ["made", "foreign"])
def test_memory_is_concealed_while_it_is_written(transport: Any, name: str) -> None:
    size = 1 << 16
    with away(size) as owner, remote.connect(owner.target, transport=transport) as device:
        tensor = device.open(name)
        way = device.path().way
        begun = threading.Event()

        def write() -> int:
            turn = 0
            while True:
                turn += 1
                tensor.write(np.full(size, turn & 255, np.uint8), signal=Add())
                begun.set()

        with futures.ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            assert begun.wait(PATIENCE)
            assert owner.ask("conceal", name) == 0  # nothing changes afterwards
            with pytest.raises(remote.NotFoundError if way != "device" else remote.RemoteError):
                writing.result(PATIENCE)
        if way == "device":  # it may have refused a write that was under way, and ended the link
            return
        assert device.peer.alive
        with pytest.raises(remote.NotFoundError):
            tensor.read()


def test_stale_handles_of_a_dead_process() -> None:
    with away() as first:
        stale = first.handle
    with away() as second, remote.connect(second.target) as device:
        assert stale.number == second.handle.number
        with pytest.raises(remote.NotFoundError, match="of another host"):
            device.open(stale)


def test_a_forked_child_is_told_to_connect_itself(transport: Any) -> None:
    with away() as owner, remote.connect(owner.target, transport=transport) as device:
        tensor = device.open("made")
        tensor[:4].write(np.arange(4, dtype=np.uint8))
        row = np.zeros(tensor.shape, np.uint8)
        found = inherited(
            tensor.read,
            lambda: tensor.write(row),
            lambda: tensor.start_read(row),
            lambda: device.open("made"),
        )
        assert [each.split(":")[0] for each in found] == [*["RemoteError"] * 3, "PeerLostError"]
        assert all("fork" in each for each in found[:3])
        assert tensor[:4].read().tolist() == [0, 1, 2, 3]  # the parent's goes on


def test_a_forked_child_has_no_part_in_what_its_parent_lets_peers_at() -> None:
    with pair("shm") as there:
        exposed, tensor = there.opened(4)
        lonely = there.host.empty(4, rights=ALL)  # nobody has opened it
        batch = there.device.batch()
        batch.write(tensor, np.ones(4, np.float32))
        prepared = batch.prepare()
        with (
            remote.receiver(there.host, "inherited", TensorSpec((4,), "float32")) as receiver,
            remote.sender(there.device, "inherited") as sender,
        ):
            sender.put(np.ones(4, np.float32))
            other_thread = object()  # which puts and gets at the fork, and never ends in the child
            sender._turn.acquire(other_thread, 0.0)
            receiver._turn.acquire(other_thread, 0.0)
            assert inherited(sender.close, receiver.close) == ["", ""]
            found = inherited(
                lambda: exposed.signal.wait(1),
                lambda: lonely.signal.wait(1),
                lambda: exposed.signal.set(7),
                lambda: lonely.signal.set(7),
                lambda: remote.wait_any([(exposed.signal, 1), (lonely.signal, 1)]),
                receiver.get,
                lambda: there.host.empty(4, rights=ALL),
                lambda: there.host.expose(np.zeros(4), rights=ALL),
                lambda: sender.put(np.zeros(4, np.float32)),
                prepared.start,
                lambda: tensor.gather([0]),
                lambda: there.device.allocate(4),
            )
            sender._turn.release(other_thread)
            receiver._turn.release(other_thread)
            assert all("fork" in each for each in found[:-1]), found
            assert {each.split(":")[0] for each in found} <= {"RemoteError", "PeerLostError"}
            assert exposed.signal.value == lonely.signal.value == 0
            assert (receiver.get(timeout=PATIENCE) == 1).all()
        assert tensor.read().tolist() == [0] * 4
        assert there.device.open(exposed.handle).read().tolist() == [0] * 4


def test_reconnects_leave_nothing(transport: Any) -> None:
    warm, visits = (5, 50) if transport != "verbs" else (2, 5)  # a device may be an emulated one
    with away() as owner:

        def visit() -> None:
            with remote.connect(owner.target, transport=transport) as device:
                with device.open("made") as tensor:
                    tensor[:8].write(np.ones(8, np.uint8), signal=Add())
                device.allocate(100).write(np.zeros(100, np.float32))

        def count() -> tuple[int, int]:
            gc.collect()
            return len(os.listdir("/proc/self/fd")), owner.ask("descriptors")

        for _ in range(warm):
            visit()
        before = count()
        for _ in range(visits):
            visit()
        # Links and what they held go by threads of the core's, each a moment later.
        for _ in range(2000):
            after = count()
            if after[0] <= before[0] and after[1] <= before[1]:
                break
        assert after[0] <= before[0]
        assert after[1] <= before[1]


def _watch(exposed: remote.Exposed) -> None:
    seen = 0
    while True:
        seen = exposed.signal.wait(seen + 1, PATIENCE)
        assert (exposed.array >= seen).all()


def test_a_flag_never_comes_before_its_payload(transport: Any) -> None:
    """Writers are killed at any point."""
    size = 1 << 16
    with pair(transport) as there:
        for delay in range(0, 8_000, 1_000):
            exposed = there.host.empty(size, "uint32", rights=ALL, name=f"after {delay}")
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    device = remote.connect(there.target, transport=transport)
                    tensor = device.open(f"after {delay}")
                    os.write(write, b"x")
                    for turn in range(1, 1 << 31):
                        tensor.write(np.full(size, turn, np.uint32), signal=Add())
                finally:
                    os._exit(1)
            os.close(write)
            assert os.read(read, 1) == b"x"
            os.close(read)
            killer = threading.Timer(delay / 1e6, os.kill, (child, signal.SIGKILL))
            killer.start()
            with pytest.raises(remote.PeerLostError):
                _watch(exposed)
            killer.join()
            os.waitpid(child, 0)


def test_a_killed_peer_gives_back_what_it_had_allocated() -> None:
    """The other way round: this process is the host."""
    with pair("shm", may_allocate=True, budget=1 << 20) as there:
        child = os.fork()
        if child == 0:
            try:
                with remote.connect(there.target, transport="shm") as device:
                    device.allocate(1 << 19, "uint8", name="theirs", shared=Rights.READ).write(
                        np.ones(1 << 19, np.uint8)
                    )
                    os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        for _ in range(100_000):
            try:
                there.device.allocate(1 << 19, "uint8").close()
                break
            except remote.ResourceExhaustedError:
                continue
        with pytest.raises(remote.NotFoundError):
            there.device.open("theirs")
