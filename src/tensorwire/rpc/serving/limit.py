# SPDX-License-Identifier: Apache-2.0
"""The number of calls that a server serves at a time, over all planes together."""

from __future__ import annotations

import threading
from concurrent import futures
from typing import Any


class Limit:
    """``maximum_concurrent_rpcs``: those that wait for a thread count, too."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._lock = threading.Lock()
        self._active = 0

    @property
    def reached(self) -> bool:
        return self._active >= self._maximum

    def enter(self) -> bool:
        """False: the call has to be refused, and does not leave."""
        with self._lock:
            if self._active >= self._maximum:
                return False
            self._active += 1
            return True

    def count(self) -> None:
        """For a call that was let in because the limit had not been reached."""
        with self._lock:
            self._active += 1

    def leave(self, _: object = None) -> None:
        with self._lock:
            self._active -= 1


class CountingPool(futures.Executor):
    """The user's pool as the gRPC plane sees it: what is submitted here are its calls, from the
    time on when one waits for a thread until its handler returns."""

    def __init__(self, pool: futures.Executor, limit: Limit) -> None:
        self._pool = pool
        self._limit = limit

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        self._limit.count()
        try:
            future: futures.Future[Any] = self._pool.submit(fn, *args, **kwargs)
        except BaseException:
            self._limit.leave()
            raise
        future.add_done_callback(self._limit.leave)
        return future
