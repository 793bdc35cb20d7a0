# SPDX-License-Identifier: Apache-2.0
"""Waiting for peers, and noticing that one has gone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tensorwire.bench.suites.train import peers


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setattr(peers, "WATCH_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_peer_that_listens_is_reached(listener: socket.socket) -> None:
    peers.reach({"ps 0": address(listener)})


def test_one_that_never_does_is_named(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "REACH_SECONDS", 0.2)
    where = address(listener)
    listener.close()
    with pytest.raises(peers.PeerError, match=f"ps 0 at {where} cannot be reached"):
        peers.reach({"ps 0": where})


def test_a_peer_that_goes_is_noticed_once(listener: socket.socket) -> None:
    lost = threading.Semaphore(0)
    watch = peers.Watch({"worker 1": address(listener)}, lost.release)
    listener.settimeout(20)
    for _ in range(peers.MISSES + 1):  # looked at more often than it would have taken to lose it
        listener.accept()[0].close()
    assert not lost.acquire(blocking=False)
    listener.close()
    assert lost.acquire(timeout=20)
    assert str(watch.reason).startswith("worker 1 at 127.0.0.1:")
    assert not lost.acquire(timeout=0.1)
    watch.close()
