# SPDX-License-Identifier: Apache-2.0
"""One-sided operations that block, batches, signals and waits: the same over frames and over
memory that is mapped."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.linked import ALL, PATIENCE, Ends, known, linked

from tensorwire import _core

Words = npt.NDArray[np.uint64]


@dataclass
class Place:
    """A link, and memory of its one end that the other one may access."""

    ends: Ends
    mapped: bool

    @property
    def peer(self) -> _core.Peer:
        return self.ends.here

    def expose(self, words: int, rights: int = ALL) -> tuple[Words, _core.Region]:
        memory = (
            np.frombuffer(memoryview(_core.SharedMemory(8 * words)), np.uint64)
            if self.mapped
            else np.zeros(words, np.uint64)
        )
        region = self.ends.there.expose(memory.data, rights)
        known(self.peer, region.id)
        assert self.peer.mapped(region.id) == self.mapped
        return memory, region


@pytest.fixture(scope="module", params=["mapped", "shm", "tcp"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    mapped = request.param == "mapped"
    with linked("shm" if mapped else request.param) as ends:
        yield Place(ends, mapped)


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(_core.StatusError) as error:
        call()
    assert len(error.value.details) > 10
    return error.value.code


def rows(*each: tuple[int, ...]) -> memoryview:
    return np.array(each, np.uint64).reshape(len(each), 8).data


def test_shared_memory_is_zeroed_and_writable() -> None:
    memory = _core.SharedMemory(10_000)
    assert memory.nbytes == 10_000
    array = np.frombuffer(memoryview(memory), np.uint8)
    assert not array.any()
    array[:] = 7
    del memory
    assert (array == 7).all()
    assert code_of(lambda: _core.SharedMemory(1 << 62)) == 8
    assert code_of(lambda: _core.SharedMemory(0)) == 3


def test_blocking_operations_move_exactly_their_bytes(place: Place) -> None:
    memory, region = place.expose(1 << 16)
    peer = place.peer
    values = np.arange(1000, dtype=np.uint64)
    peer.write(region.id, 80, values.data)
    np.testing.assert_array_equal(memory[10:1010], values)
    assert (memory[9], memory[1010]) == (0, 0)
    back = np.empty(1002, np.uint64)
    peer.read(region.id, 72, back.data, PATIENCE)
    np.testing.assert_array_equal(back, memory[9:1011])
    assert peer.fetch_add(region.id, 88, 2**64 - 1) == 1
    assert peer.compare_swap(region.id, 88, 1, 5) == 0
    assert peer.compare_swap(region.id, 88, 0, 5) == 0
    assert memory[11] == 5
    large = np.arange(1 << 16, dtype=np.uint64)
    peer.write(region.id, 0, large.data)
    np.testing.assert_array_equal(memory, large)


@pytest.mark.parametrize(
    ("code", "rights", "call"),
    [
        (5, ALL, lambda peer, _: peer.read(999_999, 0, bytearray(8))),
        (7, _core.MAY_READ, lambda peer, region: peer.write(region, 0, b"x")),
        (7, _core.MAY_WRITE, lambda peer, region: peer.read(region, 0, bytearray(1))),
        (7, ALL - _core.MAY_UPDATE, lambda peer, region: peer.fetch_add(region, 0, 1)),
        (11, ALL, lambda peer, region: peer.read(region, 60, bytearray(8))),
        (11, ALL, lambda peer, region: peer.write(region, 2**64 - 4, b"12345678")),
        (3, ALL, lambda peer, region: peer.compare_swap(region, 4, 1, 1)),
        (3, ALL, lambda peer, region: peer.write_signal(region, 0, b"x", region, 4, 1)),
        (7, _core.MAY_WRITE, lambda peer, r: peer.write_signal(r, 0, b"x", r, 8, 1, add=True)),
        (11, ALL, lambda peer, region: peer.write_signal(region, 0, b"x", region, 64, 1)),
        (5, ALL, lambda peer, region: peer.write_signal(region, 0, b"x", 999_999, 0, 1)),
        (11, ALL, lambda p, r: p.prepare(bytearray(64), rows((_core.READ, r, 0, 0, 8, 60, 8, 2)))),
        (
            3,
            ALL,
            lambda p, r: p.prepare(bytearray(8), rows((0, r, 0, 0, 8, 0, 0, 1)), (r, 0, 1, False)),
        ),
    ],
)
def test_what_cannot_be_right_is_refused_and_nothing_done(
    place: Place, code: int, rights: int, call: Callable[[_core.Peer, int], object]
) -> None:
    memory, region = place.expose(8, rights)
    assert code_of(lambda: call(place.peer, region.id)) == code
    assert not memory.any()
    assert place.ends.link.alive


def test_a_batch_of_strided_rows_ends_as_one(place: Place) -> None:
    memory, region = place.expose(4096)
    memory[:] = np.arange(4096)
    here = np.zeros((64, 4), np.uint64)
    # Columns 8 to 11 of a matrix of 64 x 64 words.
    batch = place.peer.prepare(here.data, rows((_core.READ, region.id, 64, 0, 32, 512, 32, 64)))
    assert (batch.nbytes, batch.pieces) == (2048, 64)
    access = batch.start()
    assert access.ended or not place.mapped
    assert access.wait(PATIENCE)
    np.testing.assert_array_equal(here, memory.reshape(64, 64)[:, 8:12])
    memory[:] += np.uint64(1)
    assert batch.start().wait(PATIENCE)
    np.testing.assert_array_equal(here, memory.reshape(64, 64)[:, 8:12])
    back = place.peer.prepare(here.data, rows((_core.WRITE, region.id, 0, 0, 32, 512, 32, 64)))
    del here
    access = back.start()
    del back  # its memory is kept until the end
    assert access.wait(PATIENCE)
    np.testing.assert_array_equal(memory.reshape(64, 64)[:, 0:4], memory.reshape(64, 64)[:, 8:12])


def test_rows_that_touch_are_joined(place: Place) -> None:
    memory, region = place.expose(1024)
    memory[:] = np.arange(1024)
    here = np.zeros(1024, np.uint64)
    each = [(_core.READ, region.id, 64 * i, 64 * i, 64, 0, 0, 1) for i in range(64)]
    each.append((_core.READ, region.id, 4096, 4096, 8, 8, 8, 512))
    each.append((_core.READ, region.id, 0, 0, 0, 8, 8, 512))  # asks for nothing
    batch = place.peer.prepare(here.data, rows(*each))
    assert (batch.nbytes, batch.pieces) == (8192, 1)
    queue = _core.EventQueue()
    batch.start(queue, 7)
    assert queue.wait(PATIENCE) == [7]
    np.testing.assert_array_equal(here, memory)


def test_an_empty_batch_ends_at_once(place: Place) -> None:
    batch = place.peer.prepare(bytearray(8), np.zeros((0, 8), np.uint64).data)
    assert batch.start().wait(PATIENCE)


def test_rows_of_another_shape_are_refused(place: Place) -> None:
    _, region = place.expose(8)
    with pytest.raises(ValueError, match="8 columns"):
        place.peer.prepare(bytearray(8), np.zeros(7, np.uint64).data)
    with pytest.raises(ValueError, match="local memory"):
        place.peer.prepare(bytearray(8), rows((_core.READ, region.id, 0, 0, 8, 0, 2**63, 3)))
    with pytest.raises(ValueError, match="row 0"):
        place.peer.prepare(bytearray(8), rows((_core.FETCH_ADD, region.id, 0, 0, 8, 0, 0, 1)))
    with pytest.raises(BufferError):
        place.peer.prepare(b"constant", rows((_core.READ, region.id, 0, 0, 8, 0, 0, 1)))
    most = 2**24
    with pytest.raises(ValueError, match=f"at most {most} rows"):
        place.peer.prepare(b"", np.zeros((most + 1, 8), np.uint64).data)  # memory that nobody reads


def test_several_memories_count_as_if_they_lay_end_to_end(place: Place) -> None:
    memory, region = place.expose(4)
    memory[:] = 1, 2, 3, 4
    none: Any = None
    here: list[Any] = [np.zeros(2, np.uint64), b"8 bytes.", np.zeros(0), np.zeros(2, np.uint64)]
    moved = rows(
        (_core.READ, region.id, 0, 24, 8, 8, 8, 2), (_core.READ, region.id, 16, 8, 8, 0, 0, 1)
    )
    batch = place.peer.prepare(
        [each if i == 1 else each.data for i, each in enumerate(here)], moved
    )
    assert batch.start().wait(PATIENCE)
    assert here[0].tolist() == [0, 3]
    assert here[3].tolist() == [1, 2]
    for at in (8, 40):  # from one into the next, and behind the last
        with pytest.raises(ValueError, match="local memory"):
            place.peer.prepare(tuple(here), rows((_core.READ, region.id, 0, at, 16, 0, 0, 1)))
    with pytest.raises(BufferError):
        place.peer.prepare(here, rows((_core.READ, region.id, 0, 16, 8, 0, 0, 1)))
    with pytest.raises(TypeError):
        place.peer.prepare([*here[:3], none], moved)


def test_a_signal_follows_its_payload(place: Place) -> None:
    memory, region = place.expose(513)
    payload = np.zeros(512, np.uint64)
    seen: list[tuple[int, int, int]] = []
    read = threading.Semaphore(0)

    def receive() -> None:
        for turn in range(1, 100):
            assert region.wait(4096, turn, PATIENCE) == turn
            seen.append((turn, int(memory[:512].min()), int(memory[:512].max())))
            read.release()

    thread = threading.Thread(target=receive)
    thread.start()
    for turn in range(1, 100):
        payload[:] = turn
        place.peer.write_signal(region.id, 0, payload.data, region.id, 4096, 1, True, PATIENCE)
        assert read.acquire(timeout=PATIENCE)
    thread.join()
    assert seen == [(turn, turn, turn) for turn in range(1, 100)]


def test_a_batch_carries_a_signal_with_a_value_of_its_start(place: Place) -> None:
    memory, region = place.expose(16)
    _, flags = place.expose(2)
    values = np.arange(8, dtype=np.uint64)
    batch = place.peer.prepare(
        values.data, rows((_core.WRITE, region.id, 0, 0, 8, 16, 8, 8)), (flags.id, 8, 3, False)
    )
    assert batch.start().wait(PATIENCE)
    assert flags.wait(8, 3, PATIENCE) == 3
    np.testing.assert_array_equal(memory[::2], values)
    values += np.uint64(1)
    batch.start(value=9)
    assert flags.wait(8, 9, PATIENCE) == 9
    np.testing.assert_array_equal(memory[::2], values)


def test_a_wait_ends_in_time_and_with_its_region(place: Place) -> None:
    _, region = place.expose(2)
    assert region.wait(8, 0) == 0
    assert region.wait(8, 1, 0.0) is None
    assert region.wait(8, 1, 0.01) is None
    assert code_of(lambda: region.wait(12, 1, 0.0)) in {3, 11}
    assert code_of(lambda: region.wait(16, 1, 0.0)) == 11
    codes: list[int] = []
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        codes.append(code_of(lambda: region.wait(8, 1, PATIENCE)))

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    assert region.conceal(PATIENCE)
    thread.join()
    assert codes == [5]


def test_what_this_process_adds_wakes_its_own_waiters(place: Place) -> None:
    memory, region = place.expose(1)
    values: list[int | None] = []
    thread = threading.Thread(target=lambda: values.append(region.wait(0, 3, PATIENCE)))
    thread.start()
    assert region.add(0, 1) == 0
    assert region.add(0, 2) == 1
    thread.join()
    assert values == [3]
    region.set(0, 1)
    assert memory[0] == 1


def test_a_fence_orders_a_write_after_reads(place: Place) -> None:
    memory, region = place.expose(1 << 15)
    peer = place.peer
    ones = np.ones(1 << 15, np.uint64)
    for turn in range(20):
        memory[:] = 0
        into = np.full(1 << 15, 9, np.uint64)
        read = peer.access(_core.READ, region.id, 0, into.data)
        peer.fence()
        written = peer.access(_core.WRITE, region.id, 0, ones.data)
        assert written.wait(PATIENCE)
        assert read.ended
        assert not into.any(), turn


def test_a_flush_ends_after_all_that_was_begun(place: Place) -> None:
    memory, region = place.expose(1 << 15)
    assert place.peer.flush(PATIENCE)
    ones = np.ones(1 << 15, np.uint64)
    started = [place.peer.access(_core.WRITE, region.id, 0, ones.data) for _ in range(10)]
    assert place.peer.flush(PATIENCE)
    assert all(access.ended for access in started)
    assert (memory == 1).all()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_lost_link_ends_waits_for_its_words(transport: str) -> None:
    with linked(transport) as ends:
        region = ends.there.expose(_core.SharedMemory(8), ALL)
        known(ends.here, region.id)
        codes: list[int] = []
        thread = threading.Thread(
            target=lambda: codes.append(code_of(lambda: region.wait(0, 1, PATIENCE)))
        )
        thread.start()
        ends.link.close()
        thread.join()
        assert codes == [14]
        assert code_of(lambda: ends.here.read(region.id, 0, bytearray(8))) == 1


@dataclass
class Abroad:
    """A process of its own that exposes shared memory to this one."""

    process: subprocess.Popen[str]
    link: _core.Peer
    region: int

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def order(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)


@pytest.fixture
def abroad() -> Iterator[Abroad]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.one_sided_peer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address, *keys = process.stdout.readline().split()
            session, secret, instance = map(bytes.fromhex, keys)
            link = _core.connect(
                address, session, secret, instance, _core.hello(), timeout=PATIENCE
            )
            call = link.start("/t/Hold", None, None)
            region = int(process.stdout.readline())
            known(link, region)
            yield Abroad(process, link, region)
            call.cancel()
            link.close()
        finally:
            process.kill()


def test_mapped_memory_needs_nothing_of_its_owner(abroad: Abroad) -> None:
    peer, region = abroad.link, abroad.region
    assert peer.mapped(region)
    os.kill(abroad.process.pid, signal.SIGSTOP)
    values = np.arange(1 << 15, dtype=np.uint64)
    peer.write(region, 64, values.data)
    back = np.empty_like(values)
    peer.read(region, 64, back.data)
    np.testing.assert_array_equal(back, values)
    assert peer.fetch_add(region, 0, 5) == 0
    assert peer.compare_swap(region, 0, 5, 9) == 5
    peer.write_signal(region, 8, b"8 bytes!", region, 0, 1, add=True)
    assert peer.fetch_add(region, 0, 0) == 10
    rows_of_it = rows((_core.READ, region, 64, 0, 8, 16, 8, 100))
    assert peer.prepare(back.data, rows_of_it).start().ended
    np.testing.assert_array_equal(back[:100], values[:200:2])
    abroad.process.kill()
    assert abroad.process.wait(PATIENCE) == -signal.SIGKILL
    gone = _core.EventQueue()
    peer.notify(gone, 1)
    assert gone.wait(PATIENCE) == [1]
    assert code_of(lambda: peer.read(region, 0, bytearray(8))) == 14
    assert not peer.mapped(region)


def test_signals_go_to_and_fro_between_processes(abroad: Abroad) -> None:
    memory = np.frombuffer(memoryview(_core.SharedMemory(64)), np.uint64)
    mine = abroad.link.expose(memory.data, ALL)
    abroad.order(f"echo {mine.id} 500")
    for turn in range(1, 501):
        abroad.link.write_signal(abroad.region, 8, b"", abroad.region, 0, turn)
        assert mine.wait(0, turn, PATIENCE) == turn
    assert abroad.says() == "done\n"
    abroad.order("quit")
    assert abroad.process.wait(PATIENCE) == 0


def test_a_killed_peer_ends_waits_for_its_signals(abroad: Abroad) -> None:
    mine = abroad.link.expose(_core.SharedMemory(64), ALL)
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(code_of(lambda: mine.wait(0, 1, PATIENCE)))
    )
    thread.start()
    abroad.process.kill()
    thread.join()
    assert codes == [14]
    assert not mine.conceal(PATIENCE)


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of JAX, where a test imported it
def test_a_forked_child_has_no_regions_of_its_parents_peers(abroad: Abroad) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            abroad.link.read(abroad.region, 0, bytearray(8))
        except _core.StatusError as error:
            code = 0 if error.code == 9 and not abroad.link.mapped(abroad.region) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert abroad.link.fetch_add(abroad.region, 0, 1) == 0
