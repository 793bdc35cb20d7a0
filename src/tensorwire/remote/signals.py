# SPDX-License-Identifier: Apache-2.0
"""Words by which a peer tells the owner of memory that it has written there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from tensorwire import _core
from tensorwire.remote import watcher
from tensorwire.remote.errors import (
    FAILED_PRECONDITION,
    NOT_FOUND,
    DeadlineExceededError,
    NotFoundError,
    PeerLostError,
    RemoteError,
    of_core,
)
from tensorwire.remote.shared import shared
from tensorwire.rpc import lifetime
from tensorwire.rpc.waiting import News, ends_at

_WORD_BYTES: Final = 8
_LARGEST: Final = (1 << 64) - 1
_SLICE_SECONDS: Final = 0.25
"""How long one waits by the link of one peer before it is looked whether others have come."""


@dataclass(frozen=True)
class Add:
    """Raises a signal by so much (modulo 2^64)."""

    value: int = 1

    def __post_init__(self) -> None:
        _check(self.value)


@dataclass(frozen=True)
class Set:
    """Gives a signal this value."""

    value: int

    def __post_init__(self) -> None:
        _check(self.value)


SignalUpdate: TypeAlias = Add | Set


def _check(value: int) -> None:
    if not 0 <= value <= _LARGEST:
        raise ValueError(f"the word of a signal has 64 bits without a sign: {value} is no value")


class Way(NamedTuple):
    """A peer that may raise a signal, and the word as that peer's link knows it."""

    peer: _core.Peer
    region: _core.Region


class Signal:
    """A word of 64 bits, of memory that is exposed here. Its peers raise it with what they write:
    whoever sees the new value sees all that was written before. It starts at 0. Thread-safe."""

    def __init__(self) -> None:
        """``Exposed.signal`` has one. ResourceExhaustedError."""
        self.memory: Final = shared(_WORD_BYTES)
        self._generation = lifetime.generation()
        buffer: Any = self.memory
        self._word = np.frombuffer(buffer, np.uint64)
        self._lock = threading.RLock()  # guards what follows
        self._changed = threading.Condition(self._lock)
        self._ways: dict[_core.Peer, _core.Region] = {}
        self._current: Way | None = None  # one of them, while nobody has withdrawn it
        self._lost: _core.Peer | None = None
        self._over = False

    # ---------------------------------------------------------------------- for who grants it

    def grant(self, peer: _core.Peer, region: _core.Region) -> None:
        with self._lock:
            self._ways[peer] = region
            self._lost = None
            self._tell()

    def withdraw(self, peer: _core.Peer, *, lost: bool, region: _core.Region | None = None) -> None:
        """region: only if the peer has not been granted another one since."""
        with self._lock:
            known = self._ways.get(peer)
            if known is not None and (region is None or region is known):
                del self._ways[peer]
                if lost and not self._ways:
                    self._lost = peer
                if self._current is not None and self._current.peer == peer:
                    self._current = None
            self._tell()

    def end(self) -> None:
        with self._lock:
            self._over = True
            self._tell()

    def inherited(self) -> str | None:
        """Why it is the parent's; None: it is this process's own."""
        return lifetime.inherited(self._generation)

    def check_process(self) -> None:
        """RemoteError: it is the parent's. What a thread held at the fork nobody gives back, so
        that this comes before any lock."""
        if why := self.inherited():
            raise RemoteError(f"another process's memory is not used: {why}", FAILED_PRECONDITION)

    def look_again(self) -> None:
        """Has those who wait look at more than the value."""
        with self._lock:
            self._tell()

    def _tell(self) -> None:
        """Lock held."""
        self._changed.notify_all()
        self.memory.nudge()

    # ---------------------------------------------------------------------------- for its user

    @property
    def value(self) -> int:
        return int(self._word[0])

    def set(self, value: int) -> None:
        """The owner's own store. RemoteError in a forked child."""
        _check(value)
        self.check_process()
        with self._lock:
            for region in self._ways.values():
                try:
                    region.set(0, value)
                    break
                except _core.StatusError:  # concealed, or its link is lost, and not yet withdrawn
                    continue
            else:
                self._word[0] = value
            self._tell()

    def wait(self, at_least: int, timeout: float | None = None) -> int:
        """Waits until the value is ``at_least`` that; the value. It spins for a moment, then
        sleeps. timeout: seconds, None: without a limit.

        Raises DeadlineExceededError; PeerLostError when the last peer that could raise it is gone;
        NotFoundError once the memory was concealed; RemoteError in a forked child, whose parent's
        memory it is. Where no peer has opened the memory so far, it waits for one.
        """
        _check(at_least)
        self.check_process()
        ends = ends_at(timeout)
        while True:
            way = self._current
            if way is None:
                way = self._way(at_least, ends)
                if way is None:
                    return self.value
            left = _SLICE_SECONDS if ends is None else max(0.0, ends - monotonic())
            try:
                seen = way.region.wait(0, at_least, min(left, _SLICE_SECONDS))
            except _core.StatusError as raised:
                self._failed(way, raised)
                continue
            if seen is not None:
                return seen
            if ends is not None and monotonic() >= ends:
                raise self._late(at_least)

    def _failed(self, way: Way, raised: _core.StatusError) -> None:
        """The wait by the link of one peer: concealed from it, or it is lost."""
        lost = raised.code != NOT_FOUND
        if lost and way.peer.alive:
            raise of_core(raised, way.peer) from None
        self.withdraw(way.peer, lost=lost, region=way.region)

    def _way(self, at_least: int, ends: float | None) -> Way | None:
        """By which peer's link to wait; None: the value is reached."""
        with self._lock:
            while True:
                if self._ways:
                    self._current = Way(*next(iter(self._ways.items())))
                    return self._current
                if self.value >= at_least:
                    return None
                if (failure := self._failure()) is not None:
                    raise failure
                left = _SLICE_SECONDS if ends is None else ends - monotonic()
                if left <= 0:
                    raise self._late(at_least)
                self._changed.wait(min(left, _SLICE_SECONDS))

    def failure(self) -> RemoteError | None:
        """Why nobody can raise it any more; None: somebody can, or may come."""
        with self._lock:
            return self._failure()

    def _failure(self) -> RemoteError | None:
        """Lock held."""
        if self._ways:
            return None
        if self._over:
            return NotFoundError("the memory of this signal was concealed: nobody can raise it")
        if self._lost is None:
            return None
        address = self._lost.caller or self._lost.address
        return PeerLostError(
            f"the last peer that could raise this signal, at {address}, is gone: {self._lost.death}"
        )

    def _late(self, at_least: int) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"the signal has the value {self.value}, not {at_least}, in time"
        )

    # -------------------------------------------------------------------------- in an event loop

    async def reached(self, at_least: int, timeout: float | None = None) -> int:
        """``wait`` for an event loop, which one thread of the process tells of changes, whatever
        the number of loops and signals."""
        ends = ends_at(timeout)
        while True:
            nudges = self.memory.nudges
            try:
                return self.wait(at_least, 0.0)
            except DeadlineExceededError:
                if ends is not None and monotonic() >= ends:
                    raise
            await self.news(at_least, nudges, None if ends is None else ends - monotonic())

    async def news(self, at_least: int, nudges: int, seconds: float | None) -> None:
        """Waits until the value is at least that, or there was more to look at than the value since
        ``memory.nudges`` was ``nudges``, or for so many seconds."""
        news = News()
        watch = watcher.Watch(self, at_least, nudges, news.wake)
        watcher.add(watch)
        try:
            await news.wait(seconds)
        finally:
            watcher.discard(watch)


def wait_any(signals: Sequence[tuple[Signal, int]], timeout: float | None = None) -> list[int]:
    """Waits until one of these signals at least has the value beside it; the places in ``signals``
    of all that have. It spins for a moment, then sleeps. timeout: seconds, None: without a limit.

    More than 128 signals, those that RDMA devices raise, and any on Linux before 5.16, are looked
    at once in a millisecond, here and for event loops.

    Raises what ``Signal.wait`` does: PeerLostError only when it is true of all of them. ValueError:
    there are none.
    """
    if not signals:
        raise ValueError("wait_any needs one signal at least")
    for signal, at_least in signals:
        _check(at_least)
        signal.check_process()
    ends = ends_at(timeout)
    while True:
        # Before the looks: what happens after them ends the wait.
        words = [(signal.memory, 0, at_least, signal.memory.nudges) for signal, at_least in signals]
        # Before the values: a peer may raise one and go.
        failures = [signal.failure() for signal, _ in signals]
        reached = [
            place for place, (signal, at_least) in enumerate(signals) if signal.value >= at_least
        ]
        if reached:
            return reached
        if all(failures):
            raise next(failure for failure in failures if failure is not None)
        left = None if ends is None else max(0.0, ends - monotonic())
        if not _core.wait_any(words, left):
            raise DeadlineExceededError(f"none of {len(signals)} signals was raised in time")
