# SPDX-License-Identifier: Apache-2.0
"""Ways for a process that uses tensorwire to end, with threads in the middle of everything:
``python -m tests.rpc.exits 200`` goes each of them so often and prints what came of it; the tests
go each of them ``TIMES``.

A process that has imported everything and used nothing forks one child for each exit, which saves
the imports; the child ends as any interpreter does.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import itertools
import multiprocessing
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import grpc
import numpy as np
from tests.rpc.pairings import ROOT, process
from tests.rpc.service import LIMIT_SECONDS, Service, path

import tensorwire
from tensorwire import rpc, tensors
from tensorwire.rpc.choice import Transport

THREADS = 3
TIMES = 10
AT_A_TIME = 2
TRANSPORTS: tuple[Transport, ...] = ("shm", "tcp")
kept: list[Any] = []  # globals of the module: alive until the interpreter clears it


# --------------------------------------------------------------------------------- what they use


def open_channel(target: str, transport: Transport) -> Any:
    channel = rpc.insecure_channel(target, transport=transport)
    kept.append(channel)
    return channel


def serve(*, workers: int = 8) -> Any:
    server = rpc.server(ThreadPoolExecutor(workers))
    server.add_generic_rpc_handlers((Service().handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    kept.append(server)
    return server, f"127.0.0.1:{port}"


def busy(work: Callable[[], object], threads: int = THREADS) -> None:
    """Daemon threads that do ``work`` for ever; returns when each has done it once."""
    begun = threading.Barrier(threads + 1)

    def run() -> None:
        # What the main thread closes as it leaves is an error here.
        with contextlib.suppress(grpc.RpcError, ValueError, RuntimeError):
            work()
            begun.wait(LIMIT_SECONDS)
            while True:
                work()

    for _ in range(threads):
        threading.Thread(target=run, daemon=True).start()
    begun.wait(LIMIT_SECONDS)


def stuck(work: Callable[[], object], threads: int = THREADS) -> None:
    """Daemon threads in one ``work`` each that does not end."""

    def run() -> None:
        with contextlib.suppress(grpc.RpcError, ValueError, RuntimeError):
            work()

    for _ in range(threads):
        threading.Thread(target=run, daemon=True).start()


# -------------------------------------------------------------------------------------- the ways


def unary(target: str, transport: Transport) -> None:
    call = open_channel(target, transport).unary_unary(path("echo"))
    busy(lambda: call(b"x"))


def large_unary(target: str, transport: Transport) -> None:
    call = open_channel(target, transport).unary_unary(path("echo"))
    message = bytes(1 << 20)
    busy(lambda: call(message), 2)


def unary_that_waits(target: str, transport: Transport) -> None:
    channel = open_channel(target, transport)
    call = channel.unary_unary(path("wait"))
    stuck(lambda: call(f"{os.getpid()}".encode()))
    channel.unary_unary(path("recall"))(f"{os.getpid()} started".encode())


def response_streams(target: str, transport: Transport) -> None:
    call = open_channel(target, transport).unary_stream(path("count"))
    busy(lambda: list(call(b"20")))


def endless_streams(target: str, transport: Transport) -> None:
    call = open_channel(target, transport).unary_stream(path("endless"))
    for _ in range(THREADS):
        stream = call(b"x")
        next(stream)
        stuck(lambda stream=stream: list(stream), 1)  # type: ignore[misc]


def request_streams(target: str, transport: Transport) -> None:
    stream = open_channel(target, transport).stream_stream(path("chat"))(itertools.repeat(b"x"))
    next(stream)
    stuck(lambda: list(stream), 1)


def futures_with_callbacks(target: str, transport: Transport) -> None:
    call = open_channel(target, transport).unary_unary(path("echo"))

    def work() -> None:
        future = call.future(b"x")
        future.add_done_callback(lambda done: kept.append(done.code()))
        future.result()

    busy(work)
    for _ in range(20):
        call.future(b"x").add_done_callback(lambda done: kept.append(done.code()))


def server_with_clients(target: str, transport: Transport) -> None:
    _, own = serve()
    unary(own, transport)


def server_in_handlers(target: str, transport: Transport) -> None:
    """Handlers that wait in the runtime for requests, and in Python for their client's end."""
    _, own = serve()
    channel = open_channel(own, transport)
    listen, wait = channel.stream_unary(path("listen")), channel.unary_unary(path("wait"))
    held = threading.Event()

    def requests(key: bytes) -> Iterator[bytes]:
        yield key
        held.wait()

    stuck(lambda: listen(requests(b"a")), 1)
    stuck(lambda: wait(b"b"), 1)
    for key in (b"a", b"b"):
        channel.unary_unary(path("recall"))(key + b" started")


def server_that_stops(target: str, transport: Transport) -> None:
    server, own = serve()
    unary(own, transport)
    server.stop(LIMIT_SECONDS)


def half_read(target: str, transport: Transport) -> None:
    stream = open_channel(target, transport).unary_stream(path("endless"))(b"x")
    next(stream)
    kept.append(stream)


def arrays_in_globals(target: str, transport: Transport) -> None:
    call = open_channel(target, transport).unary_unary(
        path("echo"),
        request_serializer=tensors.serializer,
        response_deserializer=tensors.deserializer,
    )
    mine = tensorwire.empty((1 << 18,), "float32")
    mine[:] = 1
    kept.extend([mine, tensorwire.publish(tensorwire.zeros((1 << 18,), "float32"))])
    kept.extend([call({"a": array}) for array in (mine, kept[-1], np.ones(1 << 16))])
    busy(lambda: call({"a": mine}), 2)


def exit_handlers_that_call(target: str, transport: Transport) -> None:
    call = open_channel(target, transport).unary_unary(path("echo"))

    def late() -> None:
        with contextlib.suppress(grpc.RpcError, ValueError):
            call(b"late")

    atexit.register(late)
    threading._register_atexit(late)  # type: ignore[attr-defined]
    busy(lambda: call(b"x"))


def forked_child_exits(target: str, transport: Transport) -> None:
    unary(target, transport)
    with warnings.catch_warnings():  # Python 3.12 and later warn of fork() beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid != 0:
        assert os.waitpid(pid, 0)[1] == 0


def multiprocessing_children(target: str, transport: Transport) -> None:
    unary(target, transport)
    child = multiprocessing.get_context("fork").Process(target=int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    child.join(LIMIT_SECONDS)
    status = child.exitcode
    if status is None:
        child.kill()  # or this process would wait for it at its end, without limit
    assert status == 0


def at_once(target: str, transport: Transport) -> None:
    unary(target, transport)
    os._exit(7)


def exits_in_threads(target: str, transport: Transport) -> None:
    unary(target, transport)
    call = kept[0].unary_unary(path("echo"))

    def run() -> None:
        call(b"x")
        sys.exit(3)

    for _ in range(THREADS):
        threading.Thread(target=run).start()


def terminated(target: str, transport: Transport) -> None:
    unary(target, transport)
    os.kill(os.getpid(), signal.SIGTERM)


def interrupted(target: str, transport: Transport) -> None:
    # What was started in the background of a shell has inherited that it is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unary(target, transport)
    channel = kept[0]
    key = f"{os.getpid()}".encode()

    def interrupt() -> None:
        channel.unary_unary(path("recall"))(key + b" started")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    channel.unary_unary(path("wait"))(key)


def exception(target: str, transport: Transport) -> None:
    unary(target, transport)
    raise LookupError("the end")


def while_it_connects(target: str, transport: Transport) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    kept.append(silent)
    port = silent.getsockname()[1]
    call = open_channel(f"127.0.0.1:{port}", transport).unary_unary(path("echo"))
    stuck(lambda: call(b"x"))
    with contextlib.suppress(grpc.RpcError):
        call(b"x", timeout=0.01)


def channels_come_and_go(target: str, transport: Transport) -> None:
    def work() -> None:
        with rpc.insecure_channel(target, transport=transport) as channel:
            channel.unary_unary(path("echo"))(b"x")

    busy(work, 2)


def servers_come_and_go(target: str, transport: Transport) -> None:
    def work() -> None:
        server = rpc.server(ThreadPoolExecutor(1))
        server.add_insecure_port("127.0.0.1:0")
        server.start()
        server.stop(None)

    busy(work, 2)


class _Finalised:
    """What the garbage collector finds in a cycle, and whose end runs Python for a while."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        for _ in range(1000):
            pass


def finalisers(target: str, transport: Transport) -> None:
    """Python's code runs in the middle of the binding, where the collector gets its turn."""
    gc.set_threshold(1, 1, 1)
    call = open_channel(target, transport).unary_unary(path("metadata"))

    def work() -> None:
        _Finalised()
        call.with_call(b"x", metadata=[("x-a", "b")])

    busy(work)


def user_threads_go_on(target: str, transport: Transport) -> None:
    """The interpreter waits for them; what they call still works."""
    call = open_channel(target, transport).unary_unary(path("echo"))
    if (3, 12) <= sys.version_info < (3, 12, 2):
        call(b"x")  # these start no threads, for a new link, once the main thread has ended

    def run() -> None:
        threading.main_thread().join()
        assert call(b"x") == b"x"

    for _ in range(THREADS):
        threading.Thread(target=run).start()


def subinterpreter(target: str, transport: Transport) -> None:
    """One that cannot load the runtime says so, and does no harm to the first."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    interpreters = importlib.import_module(name)
    unary(target, transport)
    number = interpreters.create()
    try:
        failed = interpreters.run_string(number, "import tensorwire._core") is not None
    except RuntimeError:  # before Python 3.13
        failed = True
    assert failed
    interpreters.destroy(number)


class Way(NamedTuple):
    """status: as os.waitstatus_to_exitcode has it. said: all that standard error may have."""

    run: Callable[[str, Transport], None]
    status: int = 0
    said: str = ""

    def __str__(self) -> str:
        return self.run.__name__


WAYS = (
    Way(unary),
    Way(large_unary),
    Way(unary_that_waits),
    Way(response_streams),
    Way(endless_streams),
    Way(request_streams),
    Way(futures_with_callbacks),
    Way(server_with_clients),
    Way(server_in_handlers),
    Way(server_that_stops),
    Way(half_read),
    Way(arrays_in_globals),
    Way(exit_handlers_that_call),
    Way(forked_child_exits),
    Way(multiprocessing_children),
    Way(at_once, 7),
    Way(exits_in_threads),
    Way(terminated, -signal.SIGTERM),
    Way(interrupted, -signal.SIGINT, "KeyboardInterrupt"),
    Way(exception, 1, "LookupError: the end"),
    Way(while_it_connects),
    Way(channels_come_and_go),
    Way(servers_come_and_go),
    Way(finalisers),
    Way(user_threads_go_on),
    Way(subinterpreter),
)


# ---------------------------------------------------------------------------------- going them


def main(name: str, target: str, count: int, transports: Sequence[Transport]) -> None:
    """Forks ``count`` children that exit by the way ``name``, over the transports in turn, and
    prints what went wrong. Returns in each of the children, too."""
    way = next(way for way in WAYS if str(way) == name)
    living: dict[int, tuple[int, int]] = {}  # by pidfd
    wrong = []
    started = 0
    while started < count or living:
        while started < count and len(living) < AT_A_TIME:
            said = os.memfd_create("said")
            pid = os.fork()
            if pid == 0:
                os.dup2(said, 2)
                random.seed(started)
                sys.setswitchinterval(1e-4)  # more turns of more threads in less time
                way.run(target, transports[started % len(transports)])
                linger(random.randrange(50))
                return
            living[os.pidfd_open(pid)] = pid, said
            started += 1
        ended, _, _ = select.select(list(living), [], [], LIMIT_SECONDS)
        for pidfd in ended or list(living):
            pid, said = living.pop(pidfd)
            if not ended:
                os.kill(pid, signal.SIGABRT)
            os.close(pidfd)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with open(said, "rb") as file:
                file.seek(0)
                text = file.read().decode(errors="replace").strip()
            if status != way.status or not text.endswith(way.said) or (text and not way.said):
                hung = "" if ended else f"hung for {LIMIT_SECONDS} s; "
                wrong.append(f"{hung}status {status}\n{text}")
    print(f"{len(wrong)} of {count} went wrong", *wrong[:3], sep="\n")


def linger(turns: int) -> None:
    """So that the threads are somewhere else at each exit."""
    for _ in range(turns):
        os.sched_yield()


def go(way: Way, target: str, count: int, transports: Sequence[str] = TRANSPORTS) -> str:
    """What ``main`` prints, in a process of its own."""
    command = [sys.executable, "-m", "tests.rpc.exits", str(way), target, str(count), *transports]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=count * 20
    )
    return done.stdout.strip()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        way, target, count, *transports = sys.argv[1:]
        main(way, target, int(count), cast("list[Transport]", transports))
    else:
        with process(kind="tensorwire") as (peer, _):
            for one, transport in itertools.product(WAYS, TRANSPORTS):
                said = go(one, peer, int(sys.argv[1]), [transport])
                print(f"{one}, {transport}: {said}", flush=True)
