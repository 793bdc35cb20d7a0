# SPDX-License-Identifier: Apache-2.0
"""PyTorch's collectives over the back end on a CUDA device: skipped where there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.cuda import programs
from tests.torch.ranks import Ranks

import torch
from tensorwire.torch import build

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
BOTH = "cpu:tensorwire,cuda:tensorwire"


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    build.plugin(build.installed())


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    running = Ranks(tmp_path_factory.mktemp("cuda"), 2)
    yield running
    running.close()


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    running = Ranks(tmp_path_factory.mktemp("cuda"), 4)
    yield running
    running.close()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Ranks]:
    running = Ranks(tmp_path, 2)
    yield running
    running.close()


@pytest.mark.parametrize("backend", ["tensorwire", BOTH])
def test_each_operation(two: Ranks, backend: str) -> None:
    counts, dtypes = [5, 300_000], [torch.float32, torch.bfloat16, torch.int64]
    assert two.results(programs.moves, counts, dtypes, backend=backend) == [[]] * 2


def test_each_operation_of_four(four: Ranks) -> None:
    counts, dtypes = [7, 300_001], [torch.float32, torch.uint8]
    assert four.results(programs.moves, counts, dtypes) == [[]] * 4


def test_several_pieces(two: Ranks) -> None:
    assert two.results(programs.moves, [3_500_001], [torch.float32]) == [[]] * 2


@pytest.mark.parametrize("count", [1000, 1 << 20])
def test_types_and_reductions(two: Ranks, count: int) -> None:
    assert two.results(programs.reductions, count) == [[]] * 2


def test_types_and_reductions_of_four(four: Ranks) -> None:
    assert four.results(programs.reductions, 1 << 20) == [[]] * 4


def test_between_hosts(two: Ranks) -> None:
    found = two.results(programs.moves, [5, 3_000_000], [torch.float32], transport="tcp")
    assert found == [[]] * 2


def test_large(two: Ranks) -> None:
    assert two.results(programs.large, 256) == [[True] * 3] * 2


def test_large_of_four(four: Ranks) -> None:
    assert four.results(programs.large, 256) == [[True] * 3] * 4


def test_streams(two: Ranks) -> None:
    for found in two.results(programs.streams):
        assert all(found), found


def test_other_streams_go_on(two: Ranks) -> None:
    for found in two.results(programs.beside):
        assert all(later for _, later in found), found


def test_asynchronous(two: Ranks) -> None:
    for found in two.results(programs.asynchronous):
        assert all(found), found


def test_strides(two: Ranks) -> None:
    for found in two.results(programs.strided):
        assert all(found), found


def test_data_parallel(two: Ranks) -> None:
    first, second = two.results(programs.ddp)
    assert first == second
    assert first[0] == pytest.approx(first[1], rel=1e-3)
    assert first[0][-1] < first[0][0]


def test_fully_sharded(two: Ranks) -> None:
    first, second = two.results(programs.fully_shard)
    assert first[0] == second[0]
    assert first[0] == pytest.approx(first[1], rel=1e-3)


def test_messages(two: Ranks) -> None:
    for found in two.results(programs.messages):
        assert all(found), found


@pytest.mark.parametrize("backend", ["tensorwire", BOTH])
def test_groups_and_objects(two: Ranks, backend: str) -> None:
    found = two.results(programs.objects, backend=backend)
    assert found == [[[{"rank": 0}, {"rank": 1}], [2.0] * 5, [2.0] * 5]] * 2


@pytest.mark.parametrize("count", [1000, 1 << 20])
def test_factors(two: Ranks, count: int) -> None:
    assert two.results(programs.scaled, count) == [[]] * 2


@pytest.mark.parametrize("count", [1000, 1 << 20])
def test_uneven_shares(two: Ranks, count: int) -> None:
    assert two.results(programs.uneven, count) == [[]] * 2


def test_all_to_all_of_uneven_shares(two: Ranks) -> None:
    assert two.results(programs.uneven_exchange) == [True] * 2


@pytest.mark.parametrize("how", ["count", "small", "dtype", "device"])
def test_ranks_that_disagree(two: Ranks, how: str) -> None:
    for said in two.results(programs.disagree, how):
        assert "DistBackendError" in said
        assert "called" in said


def test_memory_that_comes_and_goes(two: Ranks) -> None:
    for good, gone in two.results(programs.memory_comes_and_goes):
        assert good
        assert gone < 4 << 30  # each tensor has half a GiB


def test_no_memory(fresh: Ranks) -> None:
    first, second = fresh.results(programs.no_memory)
    assert "memory" in second[0]
    assert first[0]


def test_a_stream_that_does_not_get_on(fresh: Ranks) -> None:
    for took, said in fresh.results(programs.stuck):
        assert "DistBackendError" in said
        assert took < 10


@pytest.mark.parametrize("count", [1000, 16 << 20])
def test_a_rank_that_is_killed(fresh: Ranks, count: int) -> None:
    fresh.begin(programs.lose, count)
    took, said = fresh.result(0)
    assert "DistBackendError" in said
    assert took < 10


@pytest.mark.parametrize(
    ("setting", "ways"),
    [("", ["device_in_place", "device_staged"]), ("expandable_segments:True", ["device_staged"])],
)
def test_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, ways: list[str]
) -> None:
    if setting:
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            monkeypatch.setitem(os.environ, name, setting)
    running = Ranks(tmp_path, 2)
    try:
        assert running.results(programs.went) == [ways] * 2
    finally:
        running.close()
