# SPDX-License-Identifier: Apache-2.0
"""Peers that stop, or keep what they get, while others go on: the bill is their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tests.pausing import paused
from tests.rpc.pairings import ROOT, Pairing, process
from tests.rpc.service import LIMIT_SECONDS, path
from tests.transports import HERE

LARGE = 64 << 20
GOOD = [
    Pairing("tensorwire", "tensorwire", "shm"),
    Pairing("tensorwire", "tensorwire", "tcp"),
    Pairing("stock", "tensorwire", "grpc"),
]


@contextlib.contextmanager
def client(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs ``code``; it is killed in the end."""
    prelude = """
        import os, signal, sys
        import tensorwire
        from tests.rpc.service import path
    """
    program = textwrap.dedent(prelude) + textwrap.dedent(code)
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def stops(child: subprocess.Popen[str]) -> None:
    """By itself."""
    assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])


def others_are_served(target: str, calls: int = 10) -> None:
    for pairing in GOOD:
        with pairing.channel(target) as channel:
            echo = channel.unary_unary(path("echo"))
            for n in range(calls):
                message = str(n).encode() * 10_000
                assert echo(message, timeout=LIMIT_SECONDS) == message


ASK_AND_STOP = """
    transport, target = sys.argv[1:]
    channel = tensorwire.insecure_channel(target, transport=transport)
    channel.unary_unary(path("echo"))(b"the link is there")
    zeros = channel.unary_unary(path("zeros"))
    calls = [zeros.future(b"67108864") for _ in range(6)]
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_reader_that_stops_holds_up_nobody(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORWIRE_BUFFER_BYTES", "4M")  # what is larger has to be read to leave
    monkeypatch.setenv("TENSORWIRE_POOL_BYTES", "4M")
    with (
        process(kind="tensorwire", workers=4) as (target, _),
        client(ASK_AND_STOP, transport, target) as reader,
    ):
        stops(reader)
        others_are_served(target)


# It reads until it stops: the server always has credit to send more than the kernel's buffers hold.
STREAM_AND_STOP = """
    import threading
    transport, target = sys.argv[1:]
    channel = tensorwire.insecure_channel(target, transport=transport)
    reading = threading.Barrier(5)
    def read(key):
        for n, _ in enumerate(channel.unary_stream(path("endless"))(key)):
            if n == 20:
                reading.wait()
    for n in range(4):
        threading.Thread(target=read, args=[str(n).encode() * 30_000], daemon=True).start()
    reading.wait()
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_link_whose_reader_stopped_is_given_up(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers that stream to it are let go of."""
    monkeypatch.setenv("TENSORWIRE_STALL_SECONDS", "1")
    monkeypatch.setenv("TENSORWIRE_STREAM_WINDOW_BYTES", "64M")
    with (
        process(kind="tensorwire", workers=5) as (target, _),
        client(STREAM_AND_STOP, transport, target) as reader,
    ):
        stops(reader)
        with Pairing("stock", "tensorwire", "grpc").channel(target) as channel:
            recall = channel.unary_unary(path("recall"))
            for n in range(4):
                key = str(n).encode() * 30_000
                assert recall(key, timeout=LIMIT_SECONDS).startswith(b"closed ")


HOARD = """
    from tensorwire.rpc import segments
    target, = sys.argv[1:]
    channel = tensorwire.insecure_channel(target, transport="shm")
    zeros = channel.unary_unary(path("zeros"), response_deserializer=segments(lambda b: b))
    kept = [zeros(b"1048576") for _ in range(40)]
    print(sum(buffer.leased for reply in kept for buffer in reply), flush=True)
    signal.pause()
"""


def test_readers_that_keep_all_they_get_leave_others_their_replies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TENSORWIRE_BUFFER_BYTES", "32M")
    monkeypatch.setenv("TENSORWIRE_POOL_BYTES", "32M")
    with process(kind="tensorwire", workers=4) as (target, _), contextlib.ExitStack() as stack:
        hoarders = [stack.enter_context(client(HOARD, target)) for _ in range(5)]
        leased = []
        for hoarder in hoarders:
            assert hoarder.stdout is not None
            leased.append(int(hoarder.stdout.readline()))
        assert 16 <= sum(leased) < 32  # one may hold as much as all leave free: never all
        with Pairing("tensorwire", "tensorwire", "shm").channel(target) as channel:
            zeros = channel.unary_unary(path("zeros"))
            for _ in range(5):
                assert len(zeros(b"8388608", timeout=LIMIT_SECONDS)) == 8 << 20


class Memory:
    """A read-only array, and whether it has been freed."""

    def __init__(self) -> None:
        array = np.zeros(LARGE, np.uint8)
        array.flags.writeable = False
        self.array: Any = array
        self.freed = threading.Event()
        weakref.finalize(array, self.freed.set)

    def let_go(self) -> bool:
        self.array = None
        return self.freed.wait(LIMIT_SECONDS)


@pytest.mark.parametrize("arity", ["unary_unary", "unary_stream"])
@pytest.mark.parametrize("transport", [name for name in HERE if name != "verbs"])
def test_a_call_to_a_server_that_stopped_begins_at_once(transport: str, arity: str) -> None:
    method = {"unary_unary": "length", "unary_stream": "endless"}[arity]
    with (
        process(kind="tensorwire") as (target, server),
        Pairing("tensorwire", "tensorwire", transport).channel(target) as channel,
    ):
        assert channel.unary_unary(path("echo"))(b"the link is there") == b"the link is there"
        made = getattr(channel, arity)(path(method))
        begin = made.future if arity == "unary_unary" else made
        with paused(server.pid):
            memory = Memory()
            cancelled, late = begin(memory.array), begin(memory.array, timeout=0.2)
            assert not cancelled.done()
            assert cancelled.cancel()
            assert cancelled.code() is grpc.StatusCode.CANCELLED
            assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            del cancelled, late
            if transport != "shm":  # there it was copied
                assert memory.let_go()
        assert channel.unary_unary(path("echo"))(b"again", timeout=LIMIT_SECONDS) == b"again"


def test_what_may_change_is_copied_when_its_call_begins() -> None:
    with (
        process(kind="tensorwire") as (target, server),
        Pairing("tensorwire", "tensorwire", "tcp").channel(target) as channel,
    ):
        echo = channel.unary_unary(path("echo"))
        assert echo(b"the link is there") == b"the link is there"
        with paused(server.pid):
            message = bytearray(b"a" * LARGE)
            call = echo.future(message)
            message[:] = b"b" * LARGE
        assert call.result(LIMIT_SECONDS) == b"a" * LARGE


def test_requests_of_a_stream_end_with_their_call() -> None:
    with (
        process(kind="tensorwire") as (target, server),
        Pairing("tensorwire", "tensorwire", "tcp").channel(target) as channel,
    ):
        assert channel.unary_unary(path("echo"))(b"the link is there") == b"the link is there"
        memory = Memory()
        asked, ended = threading.Event(), threading.Event()

        def requests(array: Any) -> Iterator[Any]:
            try:
                for _ in range(3):
                    asked.set()
                    yield array
            finally:
                ended.set()

        with paused(server.pid):
            call = channel.stream_unary(path("drain")).future(requests(memory.array))
            assert asked.wait(LIMIT_SECONDS)
            assert call.cancel()
            assert ended.wait(LIMIT_SECONDS)
            assert memory.let_go()
