# SPDX-License-Identifier: Apache-2.0
"""Waiting for what other threads tell: so that Ctrl-C ends it at once, and in event loops."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, overload

_SLICE_SECONDS: Final = 0.25


@overload
def ends_at(timeout: float) -> float: ...


@overload
def ends_at(timeout: float | None) -> float | None: ...


def ends_at(timeout: float | None) -> float | None:
    """When so many seconds are over, by ``time.monotonic``; None: never. TypeError, ValueError."""
    if timeout is None:
        return None
    ends = monotonic() + timeout
    if ends != ends:
        raise ValueError(f"a timeout is a number of seconds, or None, not {timeout}")
    return ends


def wait(event: threading.Event, seconds: float | None = None) -> bool:
    """As ``event.wait(seconds)``. The interpreter sleeps on through a signal that came just before
    it fell asleep, or that the system gave to another thread: so it never sleeps for long."""
    ends = None if seconds is None else monotonic() + seconds
    while not event.is_set():
        left = _SLICE_SECONDS if ends is None else ends - monotonic()
        if left <= 0:
            return False
        event.wait(min(left, _SLICE_SECONDS))
    return True


class Bell:
    """Wakes a thread. Its steps are the interpreter's own, so that Ctrl-C leaves no lock behind, as
    it may within an event."""

    __slots__ = ("_rung", "ring")

    def __init__(self) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()
        self.ring = partial(self._rung.put, None)

    def wait(self, seconds: float | None) -> bool:
        """Until it rings; False: it has not within so many seconds."""
        ends = None if seconds is None else monotonic() + seconds
        while True:
            left = _SLICE_SECONDS if ends is None else max(ends - monotonic(), 0.0)
            try:
                self._rung.get(timeout=min(left, _SLICE_SECONDS))
                return True
            except Empty:
                if left < _SLICE_SECONDS:
                    return False


class News:
    """Wakes a coroutine from any thread. Made in the coroutine's event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float | None = None) -> bool:
        """False: nobody has called ``wake`` within so many seconds."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        return self._event.is_set()

    def clear(self) -> None:
        self._event.clear()
