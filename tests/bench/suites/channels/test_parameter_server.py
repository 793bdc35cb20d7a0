# SPDX-License-Identifier: Apache-2.0
"""The parameter server of ``tensorwire bench channels``, by each transport that this host has."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.transports import HERE

from tensorwire.bench.contenders.channels.parameter_server import Tensorwire
from tensorwire.bench.suites.channels.contender import Server, Trainer
from tensorwire.bench.suites.collectives.contender import Meeting

RANKS = 2
ELEMENTS = (5, 100_000)
STEPS = 2


@pytest.mark.parametrize("transport", HERE)
def test_gradients_are_averaged(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contender = Tensorwire()
    for name, value in contender.environment(transport).items():
        monkeypatch.setenv(name, value)

    def work(number: int) -> str:
        meeting = Meeting(number, RANKS, str(tmp_path), 60)
        with contender.join(meeting, transport, ELEMENTS) as channel:
            if isinstance(channel, Server):
                channel.serve(STEPS)
                return channel.path
            assert isinstance(channel, Trainer)
            for step in range(STEPS):
                gradients = channel.gradients()
                for each in gradients:
                    each.fill(number + step)
                found = channel.average(gradients)
                assert [each.size for each in found] == [*ELEMENTS]
                assert all(np.array_equal(each, np.full(each.size, step + 0.5)) for each in found)
            return channel.path

    with ThreadPoolExecutor(RANKS + contender.servers) as pool:
        paths = list(pool.map(work, range(RANKS + contender.servers)))
    assert paths == [transport] * len(paths)
