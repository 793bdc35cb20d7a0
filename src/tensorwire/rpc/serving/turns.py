# SPDX-License-Identifier: Apache-2.0
"""Calls that wait for a worker of the pool."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

from tensorwire import _core


class Turns:
    """Peers take turns, each with its calls in their order: who starts many calls at once keeps
    only itself waiting. Thread-safe."""

    def __init__(self) -> None:
        self.peers: OrderedDict[str, deque[_core.ServerCall]] = OrderedDict()
        """Those of which calls wait. To be looked at by others, for whether there are any."""
        self._lock = threading.Lock()

    def add(self, call: _core.ServerCall) -> None:
        peer = call.peer
        with self._lock:
            calls = self.peers.get(peer)
            if calls is None:
                calls = self.peers[peer] = deque()
            calls.append(call)

    def take(self) -> _core.ServerCall | None:
        """The first call of the peer whose turn it is; None when none waits."""
        with self._lock:
            if not self.peers:
                return None
            peer, calls = self.peers.popitem(last=False)
            call = calls.popleft()
            if calls:
                self.peers[peer] = calls
            return call

    def remove(self, call: _core.ServerCall) -> bool:
        """False: somebody has taken it."""
        peer = call.peer
        with self._lock:
            calls = self.peers.get(peer)
            if calls is None or call not in calls:
                return False
            calls.remove(call)
            if not calls:
                del self.peers[peer]
            return True
