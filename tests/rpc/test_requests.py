# SPDX-License-Identifier: Apache-2.0
"""The thread that sends a stream of requests."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tensorwire import _core
from tensorwire.rpc import status
from tensorwire.rpc.client import requests


class Message:
    """Can be referred to weakly."""


class Call:
    def __init__(self) -> None:
        self.cancelled = False
        self.why: tuple[Any, ...] = ()
        self.threads: list[int] = []
        self.done = threading.Event()

    def send(self, message: Any) -> bool:
        self.threads.append(threading.get_ident())
        return True

    def end_send(self) -> None:
        self.done.set()

    def cancel(self, *why: Any) -> bool:
        self.cancelled, self.why = True, why
        self.done.set()
        return True


def test_an_interrupt_while_it_starts_cancels_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Thread", Interrupted)
    call = Call()
    with pytest.raises(KeyboardInterrupt):
        requests.Senders().send_all([b"request"], cast(_core.Call, call), None)
    assert call.cancelled


def until(condition: Callable[[], bool]) -> None:
    """Waits for something that nobody tells of."""
    never = threading.Event()
    for _ in range(10_000):
        if condition():
            return
        never.wait(0.001)
    raise AssertionError("it has not come")


def test_a_thread_serves_calls_one_after_the_other_and_lets_go_of_each() -> None:
    senders = requests.Senders()
    used: set[int] = set()
    for _ in range(5):
        call, message = Call(), Message()
        gone = weakref.ref(message)
        senders.send_all([message], cast(_core.Call, call), None)
        del message
        assert call.done.wait(10)
        used.update(call.threads)
        until(lambda: senders.idle == 1)
        assert gone() is None
    assert len(used) < 5  # one, unless the host has stopped it for a second


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_an_iterator_that_is_left_by_any_exception_ends_its_call_only(
    kind: type[BaseException],
) -> None:
    def leaving() -> Iterator[bytes]:
        yield b""
        raise kind

    senders = requests.Senders()
    left, other = Call(), Call()
    senders.send_all(leaving(), cast(_core.Call, left), None)
    assert left.done.wait(10)
    assert left.why == (status.UNKNOWN, "Exception iterating requests!")
    senders.send_all([b""], cast(_core.Call, other), None)
    assert other.done.wait(10)
    assert not other.cancelled


def test_calls_at_the_same_time_have_a_thread_each() -> None:
    senders, together = requests.Senders(), threading.Barrier(3)

    def each() -> Iterator[bytes]:
        together.wait(10)
        yield b""

    calls = [Call(), Call()]
    for call in calls:
        senders.send_all(each(), cast(_core.Call, call), None)
    together.wait(10)
    assert all(call.done.wait(10) for call in calls)
    assert calls[0].threads != calls[1].threads
