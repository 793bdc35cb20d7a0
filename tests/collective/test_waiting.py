# SPDX-License-Identifier: Apache-2.0
"""What a rank does while it waits for another one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.collective.ranks import results

from tensorwire.collective import Group

LATE_SECONDS = 0.5


def processor_seconds(group: Group) -> list[float]:
    """Of all threads of rank 0, in each wait for rank 1."""
    late = group.rank == 1
    calls: list[Callable[[], Any]] = [
        partial(group.all_reduce, np.ones(4)),
        partial(group.all_reduce, np.ones(300_000)),
        partial(group.send, np.ones(4), 0)
        if late
        else lambda: group.receive(np.ones(4), 1, async_op=True).wait(),
    ]
    taken = []
    for call in calls:
        group.barrier()
        before = time.process_time()
        if late:
            time.sleep(LATE_SECONDS)
        call()
        taken.append(time.process_time() - before)
    return taken


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_rank_that_waits_sleeps(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", transport)
    taken = results(processor_seconds, tmp_path, 2)[0]
    assert max(taken) < LATE_SECONDS / 4, taken
