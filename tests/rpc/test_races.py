# SPDX-License-Identifier: Apache-2.0
"""What one thread does in the middle of another one's step."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tensorwire.rpc import events, lifetime
from tensorwire.rpc.choice import policy
from tensorwire.rpc.client import uplink
from tensorwire.rpc.client.call import ActiveCall
from tensorwire.rpc.options import Limits
from tensorwire.rpc.serving.peer_watcher import PeerWatcher
from tensorwire.rpc.weak import WeakMembers

LIMIT_SECONDS = 30.0
CHANCE_SECONDS = 0.2
"""Long enough for another thread to get through where nothing holds it up."""


class Beside:
    """Another thread, begun in the middle of this one's step."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.raised: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._thread.join(CHANCE_SECONDS)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.raised = error

    def join(self) -> None:
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive()


def test_a_result_during_a_cancellation_is_of_a_cancelled_call() -> None:
    class Native:
        ended = False
        results: list[Beside]

        def cancel(self) -> bool:
            self.ended = True
            self.results = [Beside(lambda: call.result()), Beside(lambda: call.exception())]
            return True

        def status(self, _: float | None) -> tuple[int, str, list[Any]]:
            return 1, "Locally cancelled by application!", []

        def initial_metadata(self) -> list[Any]:
            return []

    native: Any = Native()
    call = ActiveCall(native, None, None)
    assert call.cancel()
    for result in native.results:
        result.join()
        assert isinstance(result.raised, grpc.FutureCancelledError)


def test_a_handler_of_a_signal_cancels_a_call_that_is_being_cancelled() -> None:
    class Native:
        ended = False
        depth = 0

        def cancel(self) -> bool:
            self.depth += 1
            if self.depth > 1:
                return False
            self.ended = True
            assert not call.cancel()  # as a handler would, in the same thread
            return True

    native: Any = Native()
    call = ActiveCall(native, None, None)
    assert call.cancel()
    assert call.cancelled()


def test_a_peer_that_two_threads_find_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "watch", lambda *_: None)
    told: list[object] = []
    others: list[Beside] = []
    looks = itertools.count()

    class Server:
        def peers(self) -> list[str]:
            if next(looks) == 0:  # b comes, and another thread sees it first
                others.append(Beside(watcher.follow))
                return ["a"]
            return ["a", "b"]

    core: Any = Server()
    watcher = PeerWatcher(core, told.append)
    watcher.follow()
    others[0].join()
    watcher.follow()
    assert told == ["a", "b"]


def test_a_child_of_a_fork_has_the_new_lock_before_others_trust_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel = uplink.Uplink("unused", (), None, policy(None, ()), Limits(), None)
    inherited = channel._lock
    monkeypatch.setattr(lifetime, "_process", lifetime._Process(lifetime.generation() + 1))
    found: list[object] = []
    others: list[Beside] = []
    lock = threading.Lock

    def use() -> None:
        channel._check_process()
        found.append(channel._lock)

    def made() -> Any:
        others.append(Beside(use))
        return lock()

    with monkeypatch.context() as patch:
        patch.setattr(uplink, "threading", SimpleNamespace(Lock=made))
        use()
    assert len(others) == 1
    others[0].join()
    assert others[0].raised is None
    assert found[0] is found[1] is not inherited


class Member:
    pass


@contextmanager
def busy(work: Callable[[], object]) -> Iterator[None]:
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            work()

    threads = [threading.Thread(target=repeat, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(LIMIT_SECONDS)


def test_weak_members_come_and_go_while_others_look() -> None:
    them: WeakMembers[Member] = WeakMembers()
    stays = Member()
    them.add(stays)

    def come_and_go() -> None:
        members = [Member() for _ in range(50)]
        for member in members:
            them.add(member)
        them.discard(members[0])

    with busy(come_and_go):
        for _ in range(2000):
            assert stays in them.members()
    gc.collect()
    assert them.members() == [stays]
    them.discard(stays)
    assert them.members() == []
