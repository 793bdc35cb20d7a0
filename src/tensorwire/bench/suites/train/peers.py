# SPDX-License-Identifier: Apache-2.0
"""Whether a cluster's other processes are there. TensorFlow waits for ever for one that is not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping

REACH_SECONDS = 120.0
"""How long a worker waits for its peers to listen."""
LOOK_SECONDS = 0.1
WATCH_SECONDS = 2.0
MISSES = 3
"""A peer that was not there so often in a row, WATCH_SECONDS apart, is gone."""

Peers = Mapping[str, str]
"""Names as ``worker 1``, and their addresses."""


class PeerError(RuntimeError):
    """A peer that cannot be reached, or that has gone."""


def reach(peers: Peers) -> None:
    """Waits until all of them listen. PeerError when one of them does not in REACH_SECONDS."""
    end = time.monotonic() + REACH_SECONDS
    for name, address in peers.items():
        while (problem := missing(address)) is not None:
            if time.monotonic() > end:
                raise PeerError(
                    f"{name} at {address} cannot be reached ({problem}): is it running?"
                )
            time.sleep(LOOK_SECONDS)


def missing(address: str) -> OSError | None:
    """Why nobody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except OSError as error:
        return error
    return None


class Watch:
    """Looks after peers until ``close``, and calls ``lost`` once when one of them is gone.

    reason: which, then.
    """

    def __init__(self, peers: Peers, lost: Callable[[], None]) -> None:
        self.reason: str | None = None
        self._peers = peers
        self._lost = lost
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="peers", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        misses = dict.fromkeys(self._peers, 0)
        while not self._ended.wait(WATCH_SECONDS):
            for name, address in self._peers.items():
                misses[name] = 0 if missing(address) is None else misses[name] + 1
                if misses[name] == MISSES:
                    self.reason = f"{name} at {address} is gone; restart the cluster"
                    self._lost()
                    return
