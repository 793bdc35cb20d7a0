# SPDX-License-Identifier: Apache-2.0
"""Operations that run behind the caller's back: in one line, or in many."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar, cast

from tensorwire.rpc.waiting import ends_at

T = TypeVar("T")
_futures = threading.Lock()  # held while a work ends, or gets a future
_served = threading.local()  # .jobs: those that this thread runs


class Work(Generic[T]):
    """An operation that has been begun. ``await`` it, or ``wait()`` for it. It cannot be cancelled:
    when who awaits it is, it goes on."""

    # A future takes as long to make as a small message takes: few are asked for theirs.
    __slots__ = ("__weakref__", "_ended", "_error", "_future", "_result", "_under_way")

    def __init__(self) -> None:
        self._under_way = threading.Lock()
        self._under_way.acquire()  # until it has ended
        self._ended = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._future: Future[T] | None = None

    def end(self, result: T | None, error: BaseException | None = None) -> None:
        """It has come to this; once."""
        with _futures:
            self._result, self._error = result, error
            self._ended = True
            future = self._future
        self._under_way.release()
        if future is not None:
            self._settle(future)

    def _settle(self, future: Future[T]) -> None:
        if self._error is not None:
            future.set_exception(self._error)
        else:
            future.set_result(cast("T", self._result))

    def wait(self, timeout: float | None = None) -> T:
        """The result, or what the operation raises; TimeoutError after so many seconds: it goes
        on. ValueError for a time that is no number."""
        ends_at(timeout)  # refuses it, also of one that has ended
        if not self._ended:
            most = threading.TIMEOUT_MAX  # seconds; a lock refuses more, and so infinity
            limit = -1 if timeout is None else min(max(timeout, 0.0), most)
            if not self._under_way.acquire(timeout=limit):
                raise TimeoutError(f"the operation has not ended in {timeout} seconds")
            self._under_way.release()
        error = self._error
        if error is None:
            return cast("T", self._result)
        try:
            raise error
        finally:
            del self, error  # else its traceback would keep this frame, and so itself

    def done(self) -> bool:
        return self._ended

    def future(self) -> Future[T]:
        """Callbacks may wait for operations: these go before what has been begun already, where
        the callback was there before this one ended. What they begin they do not wait for."""
        with _futures:
            if self._future is not None:
                return self._future
            future: Future[T] = Future()
            future.set_running_or_notify_cancel()
            self._future = future
            ended = self._ended
        if ended:
            self._settle(future)
        return future

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio

        return asyncio.wrap_future(self.future()).__await__()


_Job = tuple[Work[Any], Callable[[], Any]]


class Line:
    """Operations in the order in which they were begun, by a thread that starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()
        _all.add(self)

    def reset(self) -> None:
        """As nothing had been begun: a forked child has neither the thread nor whoever held the
        lock."""
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting = 0

    def begin(self, job: Callable[[], T]) -> Work[T]:
        work: Work[T] = Work()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._waiting += 1
            self._jobs.put((work, job))
        return work

    def in_turn(self, job: Callable[[], T]) -> T:
        """Runs it by the caller's thread, or behind what has been begun before. A callback of a
        work's future, which the line's own thread runs, cannot wait for what is behind it: its job
        goes before that."""
        with self._lock:
            at_once = self._waiting == 0 or _serves(self._jobs)
        return job() if at_once else self.begin(job).wait()

    def close(self) -> None:
        """Waits for what has been begun."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._jobs.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        _served.jobs = self._jobs
        while (item := self._jobs.get()) is not None:
            _run(item, self._over)
            del item

    def _over(self) -> None:
        with self._lock:
            self._waiting -= 1


class Lines:
    """A line for each key. It has a thread while there is something in it."""

    MOST: Final = 512

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()
        _all.add(self)

    def reset(self) -> None:
        """As :meth:`Line.reset`."""
        self._lock = threading.Lock()
        self._jobs: dict[Hashable, deque[_Job]] = {}  # none is empty
        self._threads: set[threading.Thread] = set()

    def begin(self, key: Hashable, job: Callable[[], T]) -> Work[T]:
        """RuntimeError where too many keys have something under way."""
        work: Work[T] = Work()
        with self._lock:
            jobs = self._jobs.get(key)
            if jobs is not None:
                jobs.append((work, job))
                return work
            if len(self._jobs) >= self.MOST:
                raise RuntimeError(
                    f"{self.MOST} messages of different ranks and tags are under way: wait for one"
                )
            jobs = deque([(work, job)])
            thread = threading.Thread(
                target=self._run, args=(key, jobs), name=self._name, daemon=True
            )
            thread.start()
            self._jobs[key] = jobs
            self._threads.add(thread)
        return work

    def in_turn(self, key: Hashable, job: Callable[[], T]) -> T:
        """As :meth:`Line.in_turn`."""
        with self._lock:
            jobs = self._jobs.get(key)
        at_once = jobs is None or _serves(jobs)
        return job() if at_once else self.begin(key, job).wait()

    def idle(self, key: Hashable) -> bool:
        """Whether nothing of that key is under way."""
        with self._lock:
            return key not in self._jobs

    def close(self) -> None:
        """Waits for what has been begun."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _run(self, key: Hashable, jobs: deque[_Job]) -> None:
        more = True
        _served.jobs = jobs

        def over() -> None:
            nonlocal more
            with self._lock:
                jobs.popleft()
                more = len(jobs) > 0
                if not more:
                    del self._jobs[key]

        while more:
            _run(jobs[0], over)
        with self._lock:
            self._threads.discard(threading.current_thread())


def _serves(jobs: object) -> bool:
    """Whether the current thread is the one that runs them."""
    return getattr(_served, "jobs", None) is jobs


def _run(item: _Job, over: Callable[[], None]) -> None:
    """``over`` comes before whoever waits for it goes on."""
    work, job = item
    try:
        result = job()
    except BaseException as error:
        over()
        work.end(None, error)
    else:
        over()
        work.end(result)


_all: weakref.WeakSet[Line | Lines] = weakref.WeakSet()


def _in_child() -> None:
    global _futures
    _futures = threading.Lock()  # a line's thread, which the child has not, may have held it
    for each in list(_all):
        each.reset()


os.register_at_fork(after_in_child=_in_child)
