# SPDX-License-Identifier: Apache-2.0
"""Operations that run behind the caller's back, one after the other."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Work(Generic[T]):
    """An operation that has been begun. ``await`` it, or ``wait()`` for it."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def wait(self, timeout: float | None = None) -> T:
        """The result, or what the operation raises; TimeoutError after so many seconds: it goes
        on."""
        return self._future.result(timeout)

    def done(self) -> bool:
        return self._future.done()

    def future(self) -> Future[T]:
        return self._future

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio

        return asyncio.wrap_future(self._future).__await__()


class Line:
    """Operations in the order in which they were begun, by a thread that starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()
        _lines.add(self)

    def reset(self) -> None:
        """As nothing had been begun: a forked child has neither the thread nor whoever held the
        lock."""
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._waiting = 0

    def begin(self, job: Callable[[], T]) -> Work[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._waiting += 1
            self._jobs.put((future, job))
        return Work(future)

    def in_turn(self, job: Callable[[], T]) -> T:
        """Runs it by the caller's thread, or behind what has been begun before."""
        with self._lock:
            idle = self._waiting == 0
        return job() if idle else self.begin(job).wait()

    def close(self) -> None:
        """Waits for what has been begun."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._jobs.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            future, job = item
            try:
                result = job()
            except BaseException as error:
                self._over()
                future.set_exception(error)
            else:
                self._over()
                future.set_result(result)
            del item, future, job

    def _over(self) -> None:
        with self._lock:
            self._waiting -= 1


_lines: weakref.WeakSet[Line] = weakref.WeakSet()


def _in_child() -> None:
    for line in list(_lines):
        line.reset()


os.register_at_fork(after_in_child=_in_child)
