# SPDX-License-Identifier: Apache-2.0
"""Groups of more than 8 ranks, each on a host of its own: links are made as they are needed, and
ranks that have none hear of each other's death from others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from tests.collective.ranks import LIMIT_SECONDS, ranks, results

from tensorwire.collective import FileStore, Group, RankLostError

SIZE = 10


def speak_to_all(group: Group) -> bool:
    rank, size = group.rank, group.size
    across = (rank + size // 2) % size  # whom no operation before has spoken to
    came = np.zeros(1, np.int64)
    if rank < across:
        group.send(np.array([rank]), across)
        group.receive(came, across)
    else:
        group.receive(came, across)
        group.send(np.array([rank]), across)
    rows = group.all_to_all(np.full((size, 3), rank))
    total = group.all_reduce(np.array([rank]))
    group.barrier()
    return bool(
        came[0] == across
        and (rows == np.arange(size)[:, None]).all()
        and total[0] == sum(range(size))
    )


def test_all_ranks_reach_each_other(tmp_path: Path) -> None:
    assert results(speak_to_all, tmp_path, SIZE, on_a_host=1) == [True] * SIZE


def wait_for_the_last(group: Group, ready: str) -> str:
    """By a wait that nobody ends."""
    last = group.size - 1
    FileStore(ready).set(str(group.rank), b"")
    try:
        group.receive(np.zeros(1), last if group.rank == 0 else 0)
    except RankLostError as error:
        assert group.gone(last)
        return str(error)
    return "nothing has ended it"


def test_a_death_is_told_to_ranks_without_a_link(tmp_path: Path) -> None:
    ready = FileStore(tmp_path / "ready")
    program = partial(ranks, wait_for_the_last, tmp_path, SIZE, str(tmp_path / "ready"))
    with program(on_a_host=1) as running:
        for rank in range(SIZE):
            ready.get(str(rank), LIMIT_SECONDS)
        running.processes[-1].kill()
        for rank in range(SIZE - 1):
            assert f"rank {SIZE - 1}" in running.result(rank)
