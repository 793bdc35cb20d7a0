# SPDX-License-Identifier: Apache-2.0
"""Tells of each peer of a server once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tensorwire import _core
from tensorwire.log import LOGGER
from tensorwire.rpc import events


class PeerWatcher:
    """``came`` gets each peer of ``core`` until that is closed, by the events thread; its
    exceptions are logged."""

    def __init__(self, core: _core.Server, came: Callable[[_core.Peer], object]) -> None:
        self._core = core
        self._came = came
        self._lock = threading.Lock()  # guards what follows
        self._known: set[_core.Peer] = set()

    def follow(self) -> None:
        # In this order: a peer that comes after the look has been noted changes the list again.
        try:
            events.watch(self, self.follow)
        except _core.StatusError:
            return  # the server is closed
        with self._lock:  # the events thread may be here before whoever began it has looked
            there = set(self._core.peers())
            fresh = there - self._known
            self._known = there
        for native in fresh:
            self._tell(native)

    def notify(self, queue: _core.EventQueue, token: int) -> None:
        self._core.notify_peers(queue, token)

    def _tell(self, native: _core.Peer) -> None:
        try:
            self._came(native)
        except Exception:
            LOGGER.exception("exception in a callback for a new peer")
