# SPDX-License-Identifier: Apache-2.0
"""Arrays that lie in the arenas of processes: the others read them there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from tests.collective.ranks import ranks, results

import tensorwire
from tensorwire.collective import Group, RankLostError

SIZE = 3
COUNT = 300_007


def reduce_and_gather(group: Group) -> dict[str, set[str]]:
    """Each operation twice, with arrays in new places; rank 0 reduces in place, the others not."""
    every = [np.arange(COUNT, dtype=np.float32) % 1000 + rank for rank in range(SIZE)]
    total = sum(every[1:], every[0])
    for _ in range(2):
        array = tensorwire.empty(COUNT, np.float32)
        out = None if group.rank == 0 else np.empty_like(array)
        array[...] = every[group.rank]
        assert np.array_equal(group.all_reduce(array, out=out), total)
        array[...] = every[group.rank]
        reduced = group.reduce(array, root=1)
        assert group.rank != 1 or np.array_equal(reduced, total)
        array[...] = every[group.rank]
        assert np.array_equal(group.all_gather(array), np.stack(every))
        shares = tensorwire.empty((SIZE, COUNT), np.float32)
        shares[...] = every[group.rank]
        shares += np.arange(SIZE, dtype=np.float32)[:, None]
        share = group.reduce_scatter(shares).reshape(-1)
        assert np.array_equal(share, total + SIZE * group.rank)
    return {operation: set(ways) for operation, ways in group.statistics().items()}


def test_arrays_in_arenas_are_read_there(tmp_path: Path) -> None:
    # Over the stage where the kernel lets no process read another one's memory.
    operations = ("all_reduce", "reduce", "all_gather", "reduce_scatter")
    found = results(reduce_and_gather, tmp_path, SIZE)
    assert found[0] in [{each: {way} for each in operations} for way in ("in_place", "stage")]
    assert found == [found[0]] * SIZE


def reduce_until_killed(group: Group) -> str:
    array = tensorwire.empty(COUNT, np.float32)
    array[...] = 0
    try:
        for step in range(1000):
            group.all_reduce(array)
            if group.rank == 1 and step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
    except RankLostError as error:
        return str(error)
    return "nobody was missed"


def test_a_rank_that_dies_is_missed(tmp_path: Path) -> None:
    with ranks(reduce_until_killed, tmp_path, 2) as running:
        assert "rank 1" in running.result(0)


FULL = """
import sys
import numpy as np
from tensorwire.collective import join

with join(sys.argv[1], int(sys.argv[2]), 2, timeout=60) as group:
    print(group.fabric, group.all_reduce(np.ones(300_000, np.float32)).sum())
"""


def test_a_rank_whose_arena_is_full_goes_by_messages(tmp_path: Path) -> None:
    """It has no memory for the others to map."""
    ranks_ = [
        subprocess.Popen(
            [sys.executable, "-c", FULL, tmp_path, str(rank)],
            env=os.environ | ({"TENSORWIRE_BUFFER_BYTES": "1M"} if rank == 0 else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=60)[0] for rank in ranks_]
    finally:
        for rank in ranks_:
            rank.kill()
    assert said == ["messages 600000.0\n"] * 2
