# SPDX-License-Identifier: Apache-2.0
"""Callbacks at the end of calls and of peers: one thread of the process runs them."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Final, Protocol

from tensorwire import _core
from tensorwire.log import LOGGER
from tensorwire.rpc import lifetime


class Ending(Protocol):
    """A call of either end, a peer, or what else tells of something."""

    def notify(self, queue: _core.EventQueue, token: int) -> None: ...


class _Events:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue = _core.EventQueue()
        self._thread: threading.Thread | None = None
        self._tokens = itertools.count(1)
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._gone_lock = threading.Lock()
        self._gone: dict[_core.Peer, threading.Event] = {}

    def watch(self, call: Ending, callback: Callable[[], object]) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="tensorwire-events", daemon=True)
                lifetime.start(thread)
                self._thread = thread
                lifetime.close_at_exit(self)
            token = next(self._tokens)
            self._callbacks[token] = callback
        try:
            call.notify(self._queue, token)
        except BaseException:
            del self._callbacks[token]
            raise

    def gone(self, peer: _core.Peer) -> threading.Event:
        with self._gone_lock:
            gone = self._gone.get(peer)
            if gone is None:
                peer = peer.share()  # which keeps no link open
                gone = threading.Event()
                self.watch(peer, functools.partial(self._set_gone, peer))
                self._gone[peer] = gone
        return gone

    def _set_gone(self, peer: _core.Peer) -> None:
        with self._gone_lock:
            gone = self._gone.pop(peer)
        gone.set()

    def _run(self) -> None:
        while (tokens := self._queue.wait()) is not None:
            for token in tokens:
                callback = self._callbacks.pop(token)
                try:
                    callback()
                except Exception:
                    LOGGER.exception("exception in a callback at the end of a call or of a peer")
                del callback  # what it refers to lives no longer than that

    def close_at_exit(self) -> None:
        self._queue.close()
        if self._thread is not None:
            self._thread.join(lifetime.JOIN_SECONDS)
        _events.forget()  # native objects must not outlive the interpreter


_events: Final = lifetime.PerProcess(_Events)


def watch(call: Ending, callback: Callable[[], object]) -> None:
    """Runs ``callback`` in the events thread once the call has ended, or the peer is gone. Its
    exceptions are logged."""
    _events.get().watch(call, callback)


def gone(peer: _core.Peer) -> threading.Event:
    """What is set once the peer is gone: one thing for all who wait for that, however often."""
    return _events.get().gone(peer)
