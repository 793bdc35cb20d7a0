# SPDX-License-Identifier: Apache-2.0
"""Sends the messages of a client's request iterator, in a thread that is not the caller's: the
iterator may block while the call ends, and replies may have to be read before it goes on."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

from tensorwire import _core
from tensorwire.log import LOGGER
from tensorwire.rpc import lifetime, status
from tensorwire.rpc.client.call import BAD_REQUEST
from tensorwire.rpc.payload import Transform, serialized

_IDLE_SECONDS: Final = 1.0
_MOST_IDLE: Final = 8


def send_all(requests: Iterable[Any], call: _core.Call, serializer: Transform | None) -> None:
    """Returns at once. What goes wrong ends the call: UNKNOWN for the iterator, INTERNAL for the
    serializer, as with grpcio. The iterator runs in a copy of the caller's context."""
    _senders.get().send_all(requests, call, serializer)


class Senders:
    """Threads, each for one call's requests at a time. One that is done waits a while for those of
    another call: to wake a thread takes a fraction of the time that it takes to start one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.idle = 0  # threads that wait, less the work that was put for them
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def send_all(
        self, requests: Iterable[Any], call: _core.Call, serializer: Transform | None
    ) -> None:
        work = partial(contextvars.copy_context().run, _run, requests, call, serializer)
        try:
            if not self._given_to_idle(work):
                # A daemon: nothing can end a user's iterator that waits, for instance for the
                # call's replies.
                thread = threading.Thread(
                    target=self._serve, args=([work],), name="tensorwire-requests", daemon=True
                )
                lifetime.start(thread)
        except BaseException:  # Ctrl-C, or no thread is to be had
            call.cancel()
            raise

    def _given_to_idle(self, work: Callable[[], None]) -> bool:
        with self._lock:
            if not self.idle:
                return False
            self.idle -= 1  # ahead of the work: Ctrl-C between them leaves too few, never too many
            self._work.put(work)
        return True

    def _serve(self, first: list[Callable[[], None]]) -> None:
        work: Callable[[], None] | None = first.pop()  # a thread keeps its arguments
        while work is not None:
            work()
            work = None  # what it refers to lives no longer than that
            work = self._next()

    def _next(self) -> Callable[[], None] | None:
        """None: nobody has had any for a while."""
        with self._lock:
            if self.idle >= _MOST_IDLE:
                return None
            self.idle += 1
        while (work := self._taken()) is None:
            with self._lock:
                if self.idle:
                    self.idle -= 1
                    return None
                if self._work.empty():  # Ctrl-C has kept from us what was to come
                    return None
        return work

    def _taken(self) -> Callable[[], None] | None:
        try:
            return self._work.get(timeout=_IDLE_SECONDS)
        except Empty:
            return None


_senders: Final = lifetime.PerProcess(Senders)


def iterator_of(requests: Iterable[Any]) -> Iterator[Any]:
    """For stock gRPC, which knows iterators only. What is not iterable becomes known when it is
    iterated, and ends the call."""
    if hasattr(type(requests), "__next__"):
        return requests  # type: ignore[return-value]
    return _each(requests)


def _each(requests: Iterable[Any]) -> Iterator[Any]:
    yield from requests


def _run(requests: Iterable[Any], call: _core.Call, serializer: Transform | None) -> None:
    send = call.send
    try:
        iterator = _iter(requests)
        if serializer is not None:
            iterator = map(partial(serialized, serializer), iterator)
        for message in iterator:
            if message is None:
                call.cancel(*BAD_REQUEST)
                return
            try:
                sending = send(message)
            except (TypeError, ValueError, BufferError):  # the serializer's, that it is no message
                LOGGER.exception("exception serializing a request")
                call.cancel(*BAD_REQUEST)
                return
            if not sending:
                return
        call.end_send()
    except _core.StatusError as error:
        call.cancel(error.code, error.details)  # if it has not ended anyway
    # SystemExit and the like, too: they would end this thread, and leave a call that nobody ends.
    except BaseException:
        LOGGER.exception("exception iterating requests")
        call.cancel(status.UNKNOWN, "Exception iterating requests!")


def _iter(requests: Iterable[Any]) -> Iterator[Any]:
    """grpcio asks for no more of an iterator than that it has a next element."""
    if hasattr(type(requests), "__iter__") or not hasattr(type(requests), "__next__"):
        return iter(requests)
    only_next: Any = requests
    return iter(only_next.__next__, object())
