# SPDX-License-Identifier: Apache-2.0
"""Readers race with a process that overwrites what they read: no payload is handed out of which a
part is of another version."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from tests.forked import start
from tests.remote.pairs import ALL, PATIENCE, Pair

from tensorwire import remote
from tensorwire.tensors import TensorSpec

ROUNDS = 10_000
ENOUGH = 100
"""Of reads that were disturbed, and of versions, which take as many rounds more as they need, up to
ten times as many."""
FEW = 50
"""Where a device serves the memory, which may be an emulated one."""


@contextmanager
def writer(there: Pair, name: str) -> Iterator[None]:
    transport = there.device.peer.transport
    child = start("tests.remote.writer", [name, there.target, transport], {})
    try:
        yield
    finally:
        child.kill()


def test_torn_reads_are_found_by_words_around_the_payload(shared: Pair) -> None:
    """A writer orders its writes by fences, and a reader its reads: a payload between two equal
    words is of one version."""
    exposed = shared.host.empty(4096, "uint64", rights=ALL, name="row")
    with exposed, writer(shared, "guarded"), shared.device.open("row") as row:
        end, payload, begun = row[:1], row[1:-1], row[-1:]
        first, last = np.zeros(1, np.uint64), np.zeros(1, np.uint64)
        values = np.zeros(payload.shape, np.uint64)
        rounds = versions = raced = newest = 0
        least, enough = (FEW, 2) if shared.device.path().way == "device" else (ROUNDS, ENOUGH)
        while rounds < least or (min(raced, versions) < enough and rounds < 10 * least):
            end.read(first, timeout=PATIENCE)
            shared.device.fence()
            payload.read(values, timeout=PATIENCE)
            shared.device.fence()
            begun.read(last, timeout=PATIENCE)
            version = int(first[0])
            if version == newest:
                os.sched_yield()
            whole = bool((values == values[0]).all())
            if version != last[0]:
                raced += 1
            else:
                assert whole, f"a torn payload between two words {version}"
                assert values[0] == version
                assert version >= newest
                versions += version > newest
                newest = version
            rounds += 1
    assert raced > 0, "no read raced with a write: the test has tested nothing"
    assert versions > 1, "one version only was read whole: the test has tested nothing"


@pytest.mark.parametrize(
    ("spec", "rounds"),
    [(TensorSpec((4096,), "uint32"), ROUNDS), (TensorSpec((None,), "uint32"), ROUNDS // 5)],
    ids=["static", "dynamic"],
)
def test_a_channel_hands_out_whole_versions(shared: Pair, spec: TensorSpec, rounds: int) -> None:
    """Also of the tensor before, which is in use while the sender writes the next ones."""
    if shared.device.path().way == "device":
        rounds = FEW
    with (
        remote.receiver(shared.host, "versions", spec, depth=3) as receiver,
        writer(shared, "channel"),
    ):
        before = receiver.get(timeout=PATIENCE)
        for version in range(2, rounds + 1):
            found = receiver.get(timeout=PATIENCE)
            assert (before == version - 1).all()
            assert (found == version).all()
            before = found
