# SPDX-License-Identifier: Apache-2.0
"""Links of closed channels, kept for a moment, so that a program that makes a channel for each call
opens one link, not one for each."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from time import monotonic
from typing import Final, NamedTuple

from tensorwire import _core
from tensorwire.rpc import lifetime

KEEP_SECONDS: Final = 1.0
MOST: Final = 16


class Left(NamedTuple):
    """What a closed channel leaves: its link, and why that is by no better transport."""

    link: _core.Peer
    reasons: Mapping[str, str]


class _Kept(NamedTuple):
    key: Hashable
    left: Left
    until: float


class _Idle:
    """Thread-safe. Its thread lives as long as there is something to close, or soon may be."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards what follows
        self._changed = threading.Condition(self._lock)
        self._kept: list[_Kept] = []  # oldest first
        self._thread: threading.Thread | None = None
        self._stays_until = 0.0  # the thread, though there be nothing to close

    def keep(self, key: Hashable, left: Left) -> bool:
        """False: there is nobody who would close it."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="tensorwire-idle", daemon=True)
                try:
                    lifetime.start(thread)  # which waits for the lock
                except RuntimeError:
                    return False
                self._thread = thread
                lifetime.close_at_exit(self)
            # The thread need not hear of it: it looks again within KEEP_SECONDS.
            self._kept.append(_Kept(key, left, monotonic() + KEEP_SECONDS))
            surplus = self._kept.pop(0) if len(self._kept) > MOST else None
        if surplus is not None:
            surplus.left.link.close()
        return True

    def take(self, key: Hashable) -> Left | None:
        """The link that was used last."""
        with self._lock:
            for kept in reversed(self._kept):
                if kept.key == key:
                    self._kept.remove(kept)
                    if kept.left.link.alive:
                        return kept.left
        return None

    def stand_by(self) -> None:
        """Makes the thread of the caller ours, if there is none, until nothing was kept for
        KEEP_SECONDS."""
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.current_thread()
            self._stays_until = monotonic() + KEEP_SECONDS
            lifetime.close_at_exit(self)
        self._run()

    def _run(self) -> None:
        while True:
            with self._lock:
                until = self._kept[0].until if self._kept else self._stays_until
                pause = until - monotonic()
                if pause > 0.0:
                    self._changed.wait(pause)
                    continue
                if not self._kept:
                    self._thread = None
                    return
                oldest = self._kept.pop(0)
            oldest.left.link.close()
            del oldest

    def close_at_exit(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, []
            self._stays_until = 0.0
            thread = self._thread
            self._changed.notify_all()
        for each in kept:
            each.left.link.close()
        if thread is not None:
            thread.join(lifetime.JOIN_SECONDS)


_idle: Final = lifetime.PerProcess(_Idle)


def keep(key: Hashable, left: Left) -> None:
    """For a channel that is closed: ``take`` with the same key gets the link within KEEP_SECONDS.
    A link with calls in progress is closed, which ends these."""
    link = left.link
    if not link.alive or link.stats()["calls"] != 0 or not _idle.get().keep(key, left):
        link.close()


def take(key: Hashable) -> Left | None:
    """The link that a channel with the same key has left, if it is alive."""
    return _idle.get().take(key)


def stand_by() -> None:
    """For a thread that has opened a link and has nothing else to do: its channel may be closed
    after one call, which then need not start a thread."""
    _idle.get().stand_by()


def clear() -> None:
    """Closes what is kept."""
    _idle.get().close_at_exit()
