# SPDX-License-Identifier: Apache-2.0
"""A lock for threads and coroutines, which get it in the order in which they asked for it, and wait
for it no longer than they have time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

from tensorwire.rpc.waiting import Bell, News

_SLICE_SECONDS: Final = 0.25
"""Ctrl-C may be missed by a thread that falls asleep on a lock, and one that comes while the turn
is handed on may keep the wake from its waiter: so nobody sleeps for long."""


class Turn:
    """Whoever wants it makes a claim, any object, and acquires, uses and releases the turn within
    one ``try``; an ``except BaseException`` releases that claim, too. Then Ctrl-C, whenever it
    comes, leaves the turn to others; also when it comes within the first release.
    """

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        """Guards what follows. Nobody gets the turn while it is held: who finds that the turn is
        free may hold it in place of that, for a moment."""
        self.holder: object | None = None
        self._waiters: deque[tuple[object, Callable[[], object]]] = deque()

    def acquire(self, claim: object, timeout: float | None) -> bool:
        """False: it is still another's after ``timeout`` seconds."""
        if self._take(claim, None):
            return True
        bell = Bell()
        ends = None if timeout is None else monotonic() + timeout
        if not self._take(claim, bell.ring):
            while self.holder is not claim and (left := _slice(ends)) > 0:
                bell.wait(left)
        return self.holder is claim

    async def acquire_async(self, claim: object, timeout: float | None) -> bool:
        """As ``acquire``."""
        if self._take(claim, None):
            return True
        news = News()
        ends = None if timeout is None else monotonic() + timeout
        if not self._take(claim, news.wake):
            while self.holder is not claim and (left := _slice(ends)) > 0:
                await news.wait(left)
        return self.holder is claim

    def release(self, claim: object) -> None:
        """Of who holds the turn, or waits for it, or has not come to that."""
        with self.lock:
            waiters = self._waiters
            for waiter in list(waiters):
                if waiter[0] is claim:
                    waiters.remove(waiter)
            if self.holder is not claim:
                return
            if not waiters:
                self.holder = None
                return
            # It holds the turn before it leaves the line: a Ctrl-C between these loses nobody.
            self.holder, wake = waiters[0]
            waiters.popleft()
            wake()

    def _take(self, claim: object, wake: Callable[[], object] | None) -> bool:
        """Otherwise ``wake`` is called once it has the turn."""
        with self.lock:
            if self.holder is None:
                self.holder = claim
                return True
            if wake is not None:
                self._waiters.append((claim, wake))
            return False


def _slice(ends: float | None) -> float:
    return _SLICE_SECONDS if ends is None else min(ends - monotonic(), _SLICE_SECONDS)
