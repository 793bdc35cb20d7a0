# SPDX-License-Identifier: Apache-2.0
"""A peer that stores garbage over all memory that it maps. The owner gets errors or wrong values,
and no more than that: nothing outside is read or written, and nothing hangs or ends the process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from tests.forked import Child, start
from tests.remote.pairs import ALL, PATIENCE, Pair, pair
from tests.remote.scribbler import DYNAMIC, STATIC

from tensorwire import remote
from tensorwire.remote import Add, Rights

ROUNDS = 40
MOMENT = 0.002
MAX_BYTES = 4096


class Scene:
    """What this process has, of which the peer maps a part."""

    def __init__(self, there: Pair) -> None:
        host = there.host
        self.words = host.empty(512, "uint64", rights=ALL, name="words")
        self.floats = host.empty(1000, "float32", rights=Rights.WRITE, name="floats")
        self.kept = host.empty(4096, "uint8", rights=ALL, peers=[])
        self.foreign = host.expose(np.zeros(4096, np.uint8), rights=ALL, name="foreign")
        for exposed in (self.kept, self.foreign):
            exposed.array.fill(7)
        self.static = remote.receiver(host, "static", STATIC, depth=2)
        self.dynamic = remote.receiver(host, "dynamic", DYNAMIC, depth=2, max_bytes=MAX_BYTES)
        self.mine = there.device.open("words")  # by another link than the peer's
        self.senders: list[remote.Sender] = []

    def uses(self) -> list[Callable[[], object]]:
        words, mine = self.words, self.mine
        row = np.arange(512, dtype=np.uint64)
        return [
            lambda: words.signal.value,
            lambda: words.signal.wait(1 << 63, 0.0),
            lambda: words.signal.wait(301, MOMENT),
            lambda: words.signal.set(5),
            lambda: remote.wait_any(
                [(words.signal, 1 << 62), (self.floats.signal, 1 << 62)], MOMENT
            ),
            lambda: words.array.sum(),
            lambda: self.floats.array.view(np.uint32)[::3].max(),
            lambda: mine.read(timeout=PATIENCE).sum(),
            lambda: mine.write(row, signal=Add(), timeout=PATIENCE),
            lambda: mine[::3].read(timeout=PATIENCE),
            lambda: mine.gather([1, 511], timeout=PATIENCE),
            lambda: mine.fetch_add(511, 1, timeout=PATIENCE),
            lambda: mine.compare_swap(0, 300, 1, timeout=PATIENCE),
            self.get_static,
            self.get_dynamic,
            lambda: self.senders[0].put(np.ones(64, np.uint32), timeout=MOMENT),
            lambda: self.senders[1].put(np.ones(64, np.uint32), timeout=MOMENT),
            lambda: self.senders[1].put(np.ones(6400, np.uint32), timeout=MOMENT),
        ]

    def get_static(self) -> None:
        found = self.static.get(timeout=0.0)
        assert found.shape == (64,)
        assert found.dtype == np.uint32
        found.sum()

    def get_dynamic(self) -> None:
        found = self.dynamic.get(timeout=MOMENT)
        assert found.ndim == 1
        assert found.dtype == np.uint32
        assert found.nbytes <= MAX_BYTES

    def use(self) -> None:
        for _ in range(ROUNDS):
            for use in self.uses():
                with suppress(remote.RemoteError):
                    use()


@contextmanager
def scribbler(there: Pair, scene: Scene) -> Iterator[Child]:
    child = start("tests.remote.scribbler", there.target, {})
    try:
        target = f"127.0.0.1:{json.loads(child.stdout.readline())}"
        with remote.connect(target, transport="shm") as device:
            scene.senders = [remote.sender(device, name) for name in ("static", "dynamic")]
            for sender in scene.senders:
                sender.put(np.ones(64, np.uint32))
            assert child.stdout.readline() == "ready\n"
            yield child
    finally:
        child.kill()


def begin(child: Child, files: str) -> int:
    """Over how many mappings it scribbles."""
    child.stdin.write(f"{files}\n")
    child.stdin.flush()
    return int(child.stdout.readline())


def attached(device: remote.Device, name: str) -> remote.Sender:
    """Once it is noticed that the sender before is gone."""
    for _ in range(10_000):
        with suppress(remote.AlreadyExistsError):
            return remote.sender(device, name, timeout=PATIENCE)
    raise AssertionError(f"the channel {name!r} keeps a sender that is dead")


def test_a_peer_scribbles_over_all_that_it_maps() -> None:
    with pair("shm") as there:
        scene = Scene(there)
        with scribbler(there, scene) as child:
            # words, floats, the slots of two channels, each with a signal; two words of credit.
            assert begin(child, "shared") >= 10
            scene.use()
            assert begin(child, "door") >= 5
            scene.use()
            for exposed in (scene.words, scene.floats):
                with suppress(remote.DeadlineExceededError):
                    exposed.conceal(MOMENT)
            assert begin(child, "") >= 16  # the rings of the links too
            scene.use()
        for sender in scene.senders:
            with pytest.raises(remote.PeerLostError):
                sender.put(np.ones(64, np.uint32), timeout=PATIENCE)
            sender.close()
        for exposed in (scene.words, scene.floats):
            exposed.conceal(PATIENCE)
        assert (scene.kept.array == 7).all()
        assert (scene.foreign.array == 7).all()
        for name, receiver in (("static", scene.static), ("dynamic", scene.dynamic)):
            with attached(there.device, name) as sender:
                for turn in range(5):
                    value: Any = np.full(64, turn, np.uint32)
                    sender.put(value, timeout=PATIENCE)
                    np.testing.assert_array_equal(receiver.get(timeout=PATIENCE), value)


def test_a_peer_that_stays_inside_prolongs_no_close() -> None:
    with pair("shm") as there:
        scene = Scene(there)
        closes = [scene.static.close, scene.dynamic.close, there.host.close]
        with scribbler(there, scene) as child:
            assert begin(child, "inside") >= 5
            for close in 2 * closes:
                with pytest.raises(remote.DeadlineExceededError, match="amid an access"):
                    close(MOMENT)
            with pytest.raises(remote.DeadlineExceededError, match="amid an access"):
                scene.words.conceal(MOMENT)
            for exposed in (scene.kept, scene.foreign):  # whatever becomes of the others
                exposed.conceal(PATIENCE)
        for close in closes:
            close(PATIENCE)
