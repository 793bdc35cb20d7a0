# SPDX-License-Identifier: Apache-2.0
"""Words of shared memory that event loops wait for. The system tells threads that such a word has
changed, and not descriptors, by which loops wait: so one thread waits for the words of all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from tensorwire import _core
from tensorwire.remote.shared import shared
from tensorwire.rpc import lifetime


class Word(Protocol):
    """The first word of a memory."""

    @property
    def memory(self) -> _core.SharedMemory: ...

    @property
    def value(self) -> int: ...


class Watch:
    """Has ``wake`` called, once, when a word is at least so much, or its memory was nudged more
    often than ``nudges`` times."""

    def __init__(self, word: Word, at_least: int, nudges: int, wake: Callable[[], object]) -> None:
        self.word: Final = word
        self.at_least: Final = at_least
        self.nudges: Final = nudges
        self.wake: Final = wake

    def over(self) -> bool:
        return self.word.value >= self.at_least or self.word.memory.nudges != self.nudges


class _Awaited(NamedTuple):
    """As the core takes it."""

    memory: _core.SharedMemory
    offset: int
    at_least: int
    nudges: int


class _Watcher:
    def __init__(self) -> None:
        self._bell = shared(8)  # nudged when other words are to be waited for
        self._lock = threading.RLock()  # guards what follows
        self._changed = threading.Condition(self._lock)
        self._watches: set[Watch] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tensorwire-signals", daemon=True)
        lifetime.close_at_exit(self)
        lifetime.start(self._thread)

    def add(self, watch: Watch) -> None:
        with self._lock:
            self._watches.add(watch)
            self._tell()

    def discard(self, watch: Watch) -> None:
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)
                self._tell()  # the thread lets go of its memory

    def _tell(self) -> None:
        """Lock held."""
        self._changed.notify()
        self._bell.nudge()

    def _run(self) -> None:
        while (words := self._words()) is not None:
            _core.wait_any(words)
            del words

    def _words(self) -> list[_Awaited] | None:
        """Wakes who has something to look at. What the others wait for, once there are any; None:
        there will be none."""
        with self._lock:
            while not self._closed:
                if self._watches:
                    bell = _Awaited(self._bell, 0, 1, self._bell.nudges)
                    if words := self._awaited():
                        return [bell, *words]
                self._changed.wait()
            return None

    def _awaited(self) -> list[_Awaited]:
        """Lock held."""
        words: dict[Word, _Awaited] = {}
        for watch in list(self._watches):
            if watch.over():
                self._watches.remove(watch)
                watch.wake()
                continue
            known = words.get(watch.word)
            least = watch.at_least if known is None else min(known.at_least, watch.at_least)
            words[watch.word] = _Awaited(watch.word.memory, 0, least, watch.nudges)
        return list(words.values())

    def close_at_exit(self) -> None:
        with self._lock:
            self._closed = True
            self._tell()
        self._thread.join(lifetime.JOIN_SECONDS)
        _watcher.forget()  # native objects must not outlive the interpreter


_watcher: Final = lifetime.PerProcess(_Watcher)


def add(watch: Watch) -> None:
    """Begins to watch. ResourceExhaustedError."""
    _watcher.get().add(watch)


def discard(watch: Watch) -> None:
    """Nobody is woken any more."""
    _watcher.get().discard(watch)
