# SPDX-License-Identifier: Apache-2.0
"""Groups whose ranks reach each other by RDMA alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.collective.ranks import LIMIT_SECONDS, ranks
from tests.verbs import kernel

from tensorwire.collective import FileStore, Group, RankLostError


def check_operations(group: Group) -> None:
    size, rank = group.size, group.rank
    for count in (2, 1000, 300_000, 1_000_000):
        array = np.arange(count, dtype=np.float32) % 97
        assert (group.all_reduce(array + rank) == array * size + size * (size - 1) / 2).all()
    rows = group.all_gather(np.full(100_000, rank))
    assert (rows == np.arange(size)[:, None]).all()
    assert (group.broadcast(np.full(100_000, rank), root=1) == 1).all()
    group.barrier()


def reduce_for_ever(group: Group, ready: str) -> str:
    check_operations(group)
    FileStore(ready).set(str(group.rank), group.fabric.encode())
    array = np.ones(1_000_000, np.float32)
    try:
        while True:
            group.all_reduce(array, "max")
    except RankLostError as error:
        return str(error)


def test_operations_and_a_killed_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", "verbs")
    before = kernel.counted("rcvd_pkts", "rxe0")
    ready = FileStore(tmp_path / "ready")
    with ranks(reduce_for_ever, tmp_path, 2, str(tmp_path / "ready")) as running:
        for rank in range(2):
            # They import NumPy and gRPC first, in an emulated machine.
            assert ready.get(str(rank), 2 * LIMIT_SECONDS) == b"messages"
        assert kernel.counted("rcvd_pkts", "rxe0") > before + 1000
        running.processes[1].kill()
        assert "rank 1" in running.result(0)
    assert kernel.eventually(lambda: kernel.resources().total() == 0)
