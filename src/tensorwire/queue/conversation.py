# SPDX-License-Identifier: Apache-2.0
"""A streaming call to a queue's server, on which several threads and coroutines may wait: whoever
waits first receives for all."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from math import isnan
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from tensorwire import _core
from tensorwire.queue import errors
from tensorwire.rpc import CallError
from tensorwire.rpc.waiting import Bell, News

if TYPE_CHECKING:
    from tensorwire._core import Buffer
    from tensorwire.queue.errors import QueueError
    from tensorwire.rpc.client.duplex import Duplex, Inbox

T = TypeVar("T")

_SLICE_SECONDS: Final = 0.25
"""Ctrl-C may be missed by a thread that falls asleep on a lock: so it never sleeps for long."""
_MESSAGE: Final = 1

ANSWER_SECONDS: Final = 10.0
"""So long a server may take for what it does at once."""


def silent(name: str) -> QueueError:
    return errors.ServerLostError(
        f"the server of queue {name!r} has not answered within {ANSWER_SECONDS:g} s: it may be "
        "stopped or overloaded; nobody knows what became of the last item"
    )


def ends(timeout: float | None) -> float | None:
    """Raises ValueError for NaN, which would never pass, and TypeError for no number."""
    if timeout is None:
        return None
    if isnan(timeout):
        raise ValueError("a timeout is a number of seconds, or None: not NaN")
    return monotonic() + timeout


def left(end: float | None) -> float | None:
    return None if end is None else max(end - monotonic(), 0.0)


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Runs it in a thread of the event loop's, and waits for it after a cancellation, too, and
    after a second one: it works on what the caller holds."""
    working = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    cancelled: tuple[Any, ...] | None = None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as error:  # noqa: PERF203
            cancelled = error.args
    if cancelled is None:
        return working.result()
    if not working.cancelled():
        working.exception()  # so that nobody says that it was never looked at
    raise asyncio.CancelledError(*cancelled)


class Conversation:
    """``handle`` gets each message and its number, from 0, one after the other; it may raise
    DecodeError, which ends the call. After a Ctrl-C it may get one once more. ``error``: why it is
    over.

    Ctrl-C may come between any two steps of the main thread. So a lock is only ever held by `with`
    itself, which nothing comes between, and never by who waits, as with a condition, which may lose
    it; and whoever waits begins with what another has left undone.
    """

    def __init__(
        self, duplex: Duplex, name: str, handle: Callable[[list[Buffer], int], None]
    ) -> None:
        self._duplex = duplex
        self._name = name
        self._handle = handle
        self._lock = threading.Lock()  # guards what follows
        self._receiver: object | None = None
        self._inbox: Inbox = deque()
        self._number = 0  # of the first message in it
        self._wakes: set[Callable[[], object]] = set()
        self._readinesses: dict[asyncio.AbstractEventLoop, _Readiness] = {}
        self.error: QueueError | None = None

    # -------------------------------------------------------------------------------- sending

    def send(
        self, message: Any, timeout: float | None = None, sent: deque[bool] | None = None
    ) -> None:
        """Raises QueueError; FullError: the stream had no credit in time, and nothing was sent.
        sent: as for ``Duplex.send``."""
        sent = deque() if sent is None else sent
        try:
            self._duplex.send(message, timeout, sent)
        except CallError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise errors.FullError(
                    f"queue {self._name!r}: the server took no message in {timeout:g} s"
                ) from None
            raise errors.of_call(error, self._name) from None
        if not sent[-1]:
            raise self._over()

    def end_send(self) -> None:
        self._duplex.end_send()

    def cancel(self) -> None:
        self._duplex.cancel()

    def _over(self) -> QueueError:
        """Why it is, once it is. It says so to all who wait."""
        self.until(lambda: self.error is not None, None)
        assert self.error is not None
        return self.error

    # -------------------------------------------------------------------------------- waiting

    def until(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Receives until ``done()``; False: it has not come to that within ``timeout`` seconds.
        Raises QueueError when it never will."""
        end = ends(timeout)
        receiver = object()
        bell: Bell | None = None
        try:
            while True:
                with self._lock:
                    if self._inbox:
                        self._digest()
                    if self._came_to(done):
                        return True
                    rest = left(end)
                    receives = self._receiver is None
                    if rest is not None and rest <= 0:
                        if receives:  # who never waits hears what has come all the same
                            self._receive_all()
                        return self._came_to(done)
                    if receives:
                        self._receiver = receiver
                    else:
                        bell = bell or Bell()
                        self._wakes.add(bell.ring)
                if receives:
                    self._receive(rest)
                elif bell is not None:
                    bell.wait(_SLICE_SECONDS if rest is None else min(rest, _SLICE_SECONDS))
        finally:
            if bell is not None or self._receiver is receiver:
                with self._lock:
                    self._leave(receiver, bell)

    def _came_to(self, done: Callable[[], bool]) -> bool:
        """Lock held. Raises QueueError: it never will."""
        if done():
            return True
        if self.error is not None:
            raise self.error
        return False

    def _leave(self, receiver: object, bell: Bell | None) -> None:
        """Lock held."""
        if bell is not None:
            self._wakes.discard(bell.ring)
        if self._receiver is receiver:  # Ctrl-C: another one receives
            self._receiver = None
            self._wake()

    def _receive(self, timeout: float | None) -> None:
        """As the one who receives."""
        failure = None
        try:
            self._duplex.receive_to(self._inbox, timeout)
        except CallError as error:
            failure = error
        with self._lock:
            self._receiver = None
            self._digest(failure)

    def _wake(self) -> None:
        """Lock held: all who wait."""
        for wake in self._wakes:
            wake()

    def _digest(self, failure: CallError | None = None) -> None:
        """Lock held."""
        inbox = self._inbox
        while inbox:
            message = inbox[0]  # it leaves once it has been handled: Ctrl-C loses none
            if message is None:
                failure = failure or self._duplex.outcome(None)
                self._end(failure)
            else:
                try:
                    self._handle(message, self._number)
                except ValueError as error:
                    self._duplex.cancel()
                    self.error = errors.QueueError(f"queue {self._name!r}: bad answer: {error}")
            self._number += 1
            inbox.popleft()
        if failure is not None:
            self._end(failure)
        self._wake()

    def _end(self, failure: CallError | None) -> None:
        if self.error is None:
            if failure is None:
                self.error = errors.end_closed(self._name)
            else:
                self.error = errors.of_call(failure, self._name)

    # -------------------------------------------------------------------------- with an event loop

    async def until_async(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """As ``until``. A cancelled wait takes nothing with it."""
        end = ends(timeout)
        loop = asyncio.get_running_loop()
        news = News()
        with self._lock:
            self._wakes.add(news.wake)
        try:
            while True:
                news.clear()
                with self._lock:
                    if self._receiver is None:
                        self._receive_all()
                    if self._came_to(done):
                        return True
                    self._readiness_of(loop).await_message(news.wake)
                rest = left(end)
                if rest is not None and rest <= 0:
                    return False
                await news.wait(rest)
        finally:
            with self._lock:
                self._wakes.discard(news.wake)

    def _receive_all(self) -> None:
        """Lock held: what is there already."""
        if self._inbox:
            self._digest()
        try:
            while self.error is None and self._duplex.receive_to(self._inbox, 0.0):
                self._digest()
        except CallError as error:
            self._digest(error)

    def _readiness_of(self, loop: asyncio.AbstractEventLoop) -> _Readiness:
        """Lock held. In the loop's thread."""
        readiness = self._readinesses.get(loop)
        if readiness is None:
            for over in [other for other in self._readinesses if other.is_closed()]:
                self._readinesses.pop(over).close()
            readiness = self._readinesses[loop] = _Readiness(loop, self._duplex)
        return readiness

    def close(self) -> None:
        """Wakes who still waits: nothing is received any more."""
        with self._lock:
            self._end(None)
            self._digest()
            readinesses, self._readinesses = self._readinesses, {}
        for readiness in readinesses.values():
            readiness.close()


class _Readiness:
    """Tells an event loop that there is something to receive."""

    def __init__(self, loop: asyncio.AbstractEventLoop, duplex: Duplex) -> None:
        self.loop = loop
        self._duplex = duplex
        self._events = _core.EventQueue()
        self._wakes: set[Callable[[], object]] = set()
        self._armed = False
        loop.add_reader(self._events.fileno(), self._ready)

    def await_message(self, wake: Callable[[], object]) -> None:
        """In the loop's thread."""
        self._wakes.add(wake)
        if not self._armed:
            self._armed = True
            self._duplex.notify_message(self._events, _MESSAGE)

    def _ready(self) -> None:
        if not self._events.wait(0.0):
            return
        self._armed = False
        wakes, self._wakes = self._wakes, set()
        for wake in wakes:
            wake()

    def close(self) -> None:
        def remove() -> None:
            self.loop.remove_reader(self._events.fileno())
            self._events.close()

        try:
            self.loop.call_soon_threadsafe(remove)
        except RuntimeError:  # the loop is closed
            self._events.close()
