# SPDX-License-Identifier: Apache-2.0
"""Threads that cannot be had, and threads that are started while the interpreter ends."""

from __future__ import annotations

import threading

import pytest
from tests.rpc.pairings import DATA_PLANE, Pairing, local
from tests.rpc.service import LIMIT_SECONDS, path
from tests.rpc.test_process import output

from tensorwire.rpc import events

NO_THREAD = "can't start new thread"


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of threads that cannot be started for now."""
    names: set[str] = set()
    start = threading.Thread.start

    def start_if_there_is_room(self: threading.Thread) -> None:
        if self.name in names:
            raise RuntimeError(NO_THREAD)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_if_there_is_room)
    return names


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_a_channel_opens_its_link_once_there_is_a_thread(
    pairing: Pairing, shortage: set[str]
) -> None:
    with local("tensorwire") as server, pairing.channel(server.target) as channel:
        call = channel.unary_unary(path("echo"))
        shortage.add("tensorwire-open")
        with pytest.raises(RuntimeError, match=NO_THREAD):
            call(b"x", timeout=LIMIT_SECONDS)
        shortage.clear()
        assert call(b"x", timeout=LIMIT_SECONDS) == b"x"
        assert channel.stats()["link"]["messages_sent"] == 1


def test_callbacks_are_called_once_there_is_a_thread(shortage: set[str]) -> None:
    events._events.forget()
    done = threading.Event()
    with local("tensorwire") as server, DATA_PLANE[0].channel(server.target) as channel:
        # A callback of a call that has ended is called at once, without a thread.
        future = channel.unary_unary(path("pass_gate")).future(b"gate")
        shortage.add("tensorwire-events")
        with pytest.raises(RuntimeError, match=NO_THREAD):
            future.add_done_callback(lambda _: None)
        shortage.clear()
        future.add_done_callback(lambda _: done.set())
        server.service.gates["gate"].set()
        assert done.wait(LIMIT_SECONDS)


def test_a_server_stops_once_there_is_a_thread(shortage: set[str]) -> None:
    with local("tensorwire") as server:
        shortage.add("tensorwire-stop")
        with pytest.raises(RuntimeError, match=NO_THREAD):
            server.server.stop(None)
        shortage.clear()
        assert server.server.stop(0).wait(LIMIT_SECONDS)


def test_no_thread_is_started_beside_the_end_of_the_interpreter() -> None:
    """With Python 3.11.2 that ended the process by SIGSEGV now and then. The thread that runs the
    exit handlers may: what it starts has begun when it goes on."""
    said = output(
        """
        import atexit
        from tensorwire.rpc import lifetime

        def start():
            try:
                grpc_only = tensorwire.server(ThreadPoolExecutor(1))
                grpc_only.start()
                grpc_only.stop(0).wait()
                print("started")
            except RuntimeError as error:
                print(error)

        atexit._run_exitfuncs()
        other = threading.Thread(target=start)
        other.start()
        other.join()
        start()
        """
    )
    assert said.splitlines() == [
        "no thread can be started: the interpreter is ending",
        "started",
    ]
