# SPDX-License-Identifier: Apache-2.0
"""A lock for threads and coroutines, which get it in the order in which they asked for it, and wait
for it no longer than they have time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from tensorwire.rpc.waiting import News, wait


class _Waiter:
    __slots__ = ("has_it", "wake")

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake: Final = wake
        self.has_it = False


class Turn:
    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        """Guards what follows. Nobody gets the turn while it is held: who finds that the turn is
        free may hold it in place of that, for a moment."""
        self.held = False
        self._waiters: deque[_Waiter] = deque()

    def acquire(self, timeout: float | None) -> bool:
        """False: it is still another's after ``timeout`` seconds."""
        if self._take():
            return True
        event = threading.Event()
        waiter = self._wait(event.set)
        try:
            wait(event, timeout)
        except BaseException:
            if not self._give_up(waiter):
                self.release()
            raise
        return not self._give_up(waiter)

    async def acquire_async(self, timeout: float | None) -> bool:
        """As ``acquire``."""
        if self._take():
            return True
        news = News()
        waiter = self._wait(news.wake)
        try:
            await news.wait(timeout)
        except BaseException:
            if not self._give_up(waiter):
                self.release()
            raise
        return not self._give_up(waiter)

    def release(self) -> None:
        with self.lock:
            if self._waiters:
                waiter = self._waiters.popleft()
                waiter.has_it = True
                waiter.wake()
            else:
                self.held = False

    def _take(self) -> bool:
        with self.lock:
            free = not self.held
            self.held = True
            return free

    def _wait(self, wake: Callable[[], object]) -> _Waiter:
        waiter = _Waiter(wake)
        with self.lock:
            if self.held:
                self._waiters.append(waiter)
            else:
                self.held = waiter.has_it = True
                wake()
        return waiter

    def _give_up(self, waiter: _Waiter) -> bool:
        """False: it has got its turn."""
        with self.lock:
            if waiter.has_it:
                return False
            self._waiters.remove(waiter)
            return True
