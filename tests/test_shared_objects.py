# SPDX-License-Identifier: Apache-2.0
"""Objects of the binding in many threads at once. Needs no grpcio, so that it also runs where
Python has no GIL; with one it shows less."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.collective.values import Values
from tests.linked import ALL, known
from tests.linked import linked as ends_linked

from tensorwire import _core

ROOT = Path(__file__).parents[1]
THREADS = 4
ROUNDS = 60
PATIENCE = 30.0
ALL_REDUCE, FLOAT32, SUM = 1, 1, 0  # as core/tensorwire/collective.h numbers them


def in_threads(work: Callable[[int], object]) -> None:
    """Runs ``work(i)`` in all threads at once; what one of them raises is raised here."""
    start = threading.Barrier(THREADS)
    raised: list[BaseException] = []

    def run(number: int) -> None:
        try:
            start.wait(PATIENCE)
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if raised:
        raise raised[0]


@contextmanager
def collecting() -> Iterator[Callable[[], None]]:
    """Has garbage collected beside whoever calls what this yields. Without a GIL that waits until
    each thread of Python's has come to a point where it can be stopped: one that never does stops
    them all. What other tests have left is passed over: to look at it takes 0.2 s each time."""
    wanted = threading.Semaphore(0)
    over = threading.Event()

    def collect() -> None:
        while wanted.acquire() and not over.is_set():
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    gc.freeze()
    thread.start()
    try:
        yield wanted.release
    finally:
        over.set()
        wanted.release()
        thread.join(PATIENCE)
        gc.unfreeze()
        assert not thread.is_alive()


@contextmanager
def linked(transport: str) -> Iterator[_core.Peer]:
    """To a server in this process that answers each call with what it gets."""
    server = _core.Server()
    address = (
        f"shm:{server.listen_local()}"
        if transport == "shm"
        else f"tcp:127.0.0.1:{server.listen_tcp('127.0.0.1', 0)}"
    )

    def answer(call: _core.ServerCall) -> None:
        if call.method == "/stream":
            for message in call.messages(raw=False):
                call.send(message)
            call.finish(0, "", None)
        else:
            call.finish(0, "", None, call.receive(raw=False))

    def serve() -> None:
        while (calls := server.next()) is not None:
            for call in calls:
                threading.Thread(target=answer, args=(call,), daemon=True).start()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    session, secret = server.admit(_core.hello(), 1, PATIENCE)
    made = _core.connect(address, session, secret, server.instance, _core.hello(), PATIENCE)
    yield made
    made.close()
    server.close()
    serving.join(PATIENCE)
    assert not serving.is_alive()


@pytest.fixture(params=["shm", "tcp"])
def link(request: pytest.FixtureRequest) -> Iterator[_core.Peer]:
    with linked(request.param) as made:
        yield made


def seen(buffer: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(buffer, np.uint8)


def test_views_of_one_buffer_come_and_go() -> None:
    buffer = _core.allocate(1 << 16)
    array = seen(buffer)

    def look(number: int) -> None:
        mine = slice(number * 64, number * 64 + 64)
        for i in range(ROUNDS):
            if i % 8 == number:
                collect()
            view = seen(buffer)
            view[mine] = i % 256
            assert (array[mine] == i % 256).all()
            assert len(memoryview(buffer)) == buffer.nbytes

    with collecting() as collect:
        in_threads(look)


def test_a_buffer_is_separated_once_or_refused() -> None:
    for _ in range(ROUNDS):
        buffer = _core.allocate(4096)

        def use(number: int, buffer: _core.Buffer = buffer) -> None:
            if number % 2:
                assert memoryview(buffer).nbytes == 4096
            else:
                try:
                    buffer.separate()
                except _core.StatusError as error:
                    assert error.code == 9  # noqa: PT017

        in_threads(use)


def test_buffers_are_let_go_of_by_the_last_thread() -> None:
    gone: list[object] = []
    for _ in range(ROUNDS):
        array = seen(_core.allocate(4096))
        held = [array[i:] for i in range(THREADS)]
        weakref.finalize(array, gone.append, None)
        del array

        def let_go(number: int, held: list[Any] = held) -> None:
            held[number] = None

        in_threads(let_go)
    gc.collect()
    assert len(gone) == ROUNDS


def test_calls_of_one_peer(link: _core.Peer) -> None:
    def call(number: int) -> None:
        for i in range(ROUNDS // 4):
            request = bytes([number]) * (1 << (i % 18))
            collect()
            code, details, reply, _, _ = link.unary("/echo", request, PATIENCE, None, False)
            assert (code, details, reply) == (0, "", request)
            assert link.alive
            assert link.stats()["transport"] == link.transport

    with collecting() as collect:
        in_threads(call)


def echo_on_one_stream(transport: str, messages: int) -> None:
    """Of each thread. What it sends is taken by one more."""
    message = bytes(4096)
    taken: list[bytes] = []
    with linked(transport) as link:
        call = link.start("/stream", 2 * PATIENCE, None)
        replies: Any = call.messages(raw=False)
        taker = threading.Thread(target=taken.extend, args=(replies,), daemon=True)
        taker.start()

        def send(number: int) -> None:
            for i in range(messages):
                if i % 64 == number:
                    collect()
                call.send(message)

        with collecting() as collect:
            in_threads(send)
            call.end_send()
            taker.join(PATIENCE)
        assert not taker.is_alive()
        assert call.status(PATIENCE) == (0, "", [])
        assert taken == [message] * (THREADS * messages)
        assert link.alive


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_threads_that_send_on_one_stream_race_for_room(transport: str) -> None:
    """In a window of 16 messages. Who finds room may lose it to another thread: then it waits, and
    lets those go on that have to take messages first. The window is of a process of its own."""
    subprocess.run(
        [
            sys.executable,
            "-c",
            "from tests.test_shared_objects import echo_on_one_stream\n"
            f"echo_on_one_stream({transport!r}, 500)",
        ],
        cwd=ROOT,
        env={**os.environ, "TENSORWIRE_STREAM_WINDOW_BYTES": "65536"},
        timeout=PATIENCE,
        check=True,
    )


def test_messages_are_taken_once(link: _core.Peer) -> None:
    """By several threads, of one iterator."""
    call = link.start("/stream", PATIENCE, None)
    sent = [i.to_bytes(4, "little") for i in range(ROUNDS)]
    messages: Any = call.messages(raw=False)
    taken: list[list[bytes]] = [[] for _ in range(THREADS)]

    def take(number: int) -> None:
        if number == 0:
            for message in sent:
                call.send(message)
            call.end_send()
        taken[number].extend(messages)

    in_threads(take)
    assert sorted(itertools.chain(*taken)) == sorted(sent)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_operations_of_one_peer(transport: str) -> None:
    """Each thread counts in a word of all threads, and writes and reads back words of its own, by a
    batch that it prepares anew each time."""
    words = 64
    with ends_linked(transport) as ends:
        memory = np.zeros(1 + THREADS * words, np.uint64)
        region = ends.there.expose(memory.data, ALL)
        known(ends.here, region.id)

        def operate(number: int) -> None:
            offset = 8 * (1 + number * words)
            for i in range(ROUNDS):
                collect()
                before = np.zeros(1, np.uint64)
                counted = ends.here.access(_core.FETCH_ADD, region.id, 0, before.data, operand=1)
                assert counted.wait(PATIENCE)
                values = np.full(words, number * ROUNDS + i, np.uint64)
                row = (_core.WRITE, region.id, offset, 0, values.nbytes, 0, 0, 1)
                batch = ends.here.prepare(values.data, np.array([row], np.uint64).data)
                assert batch.start().wait(PATIENCE)
                back = np.empty_like(values)
                assert ends.here.access(_core.READ, region.id, offset, back.data).wait(PATIENCE)
                np.testing.assert_array_equal(back, values)

        with collecting() as collect:
            in_threads(operate)
        assert memory[0] == THREADS * ROUNDS


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_tagged_messages_of_one_peer(transport: str) -> None:
    """Each thread sends with a tag of its own, and takes what comes with it at the other end."""
    with ends_linked(transport) as ends:

        def exchange(tag: int) -> None:
            for i in range(ROUNDS):
                collect()
                message = bytes([i]) * (1 << (i % 18))
                awaited = ends.there.receive(tag)
                ends.here.send(tag, message, PATIENCE)
                assert awaited.wait(PATIENCE, raw=False) == message

        with collecting() as collect:
            in_threads(exchange)


def test_ranks_of_one_group() -> None:
    store = Values()

    def join(rank: int) -> None:
        group = _core.Group(store, rank, THREADS, "127.0.0.1", False, PATIENCE)
        given = np.arange(1000, dtype=np.float32) + rank
        sum_of_all = THREADS * np.arange(1000, dtype=np.float32) + sum(range(THREADS))
        for _ in range(ROUNDS):
            collect()
            taken = np.empty_like(given)
            group.run(ALL_REDUCE, given, taken, given.size, FLOAT32, SUM, 1.0, 0, PATIENCE)
            np.testing.assert_array_equal(taken, sum_of_all)
        group.leave()

    with collecting() as collect:
        in_threads(join)
