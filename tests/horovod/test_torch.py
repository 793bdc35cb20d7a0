# SPDX-License-Identifier: Apache-2.0
"""Horovod's names on PyTorch's tensors, between processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.horovod.ranks import bits, results

from tensorwire.bench.contenders.collectives.mpich import Mpich
from tensorwire.bench.contenders.collectives.openmpi import OpenMpi
from tensorwire.bench.suites.collectives import mpi
from tensorwire.bench.suites.collectives.mpi import MpiContender

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(("size", "transport"), [(1, "auto"), (2, "auto"), (3, "auto"), (2, "tcp")])
def test_operations(size: int, transport: str) -> None:
    total = size * (size + 1) / 2
    product = {1: 1.0, 2: 2.0, 3: 6.0}[size]
    scatter = {1: [[0, 1, 2, 3, 4]], 2: [[0, 2, 4], [6, 8]], 3: [[0, 3], [6, 9], [12]]}[size]
    for rank, found in enumerate(results("operations", size, TENSORWIRE_TRANSPORT=transport)):
        assert found["average"] == found["fp16"] == [total / size] * 3
        assert found["sum"] == [total / 2] * 3
        assert found["product"] == [product] * 3
        assert found["max"] == [size] * 3
        # Parallel ones: the average of two, and of that and the third.
        adasum = {1: 1.0, 2: 1.5, 3: 2.25}[size]
        assert found["adasum"] == pytest.approx([adasum] * 3, rel=1e-6)
        assert found["no adasum"] == (
            "Adasum is of float64, float32, float16, bfloat16, not of int64"
        )
        assert found["whole"] == [int((total - size) / size), 5]
        # More than a float64 has digits for.
        assert found["wide"] == [2**60 + 1, 2**60 + 2 * (size - 1)]
        assert found["wide rows"] == [2**60 + 1]
        assert found["half"] == [total] * 3
        assert found["grouped"] == [[total] * 3] * 2
        assert found["strided"] == [[total - size] * 2] * 3
        assert found["empty"] == []
        assert found["gather"] == [i for each in range(size) for i in range(each + 1)]
        assert found["broadcast"] == [size] * 3
        count = 2 if rank == 0 else 1
        start = 0 if rank == 0 else rank + 1
        sent = [10 * each + start + i for each in range(size) for i in range(count)]
        assert found["alltoall"] == [sent, [count] * size]
        assert found["reducescatter"] == scatter[rank]
        assert found["object"] == {"a": [1, [None]]}
        assert found["objects"] == list(range(size))
        assert found["local"] == [rank, size, 0, 1]


def test_operations_that_are_begun_or_in_place_or_of_many() -> None:
    assert results("begun_and_grouped") == [[], []]


@pytest.mark.parametrize(
    ("environment", "seconds", "messages", "copied"),
    [
        ({}, 0.001, 0, 2),
        # Both tensors are 32 bytes; the cycle's time is in milliseconds.
        ({"HOROVOD_FUSION_THRESHOLD": "32", "HOROVOD_CYCLE_TIME": "2.5"}, 0.0025, 0, 2),
        ({"HOROVOD_FUSION_THRESHOLD": "31", "HOROVOD_CACHE_CAPACITY": "0"}, 0.001, 5, 0),
    ],
)
def test_variables_of_the_environment(
    environment: dict[str, str], seconds: float, messages: int, copied: int
) -> None:
    first, second = results("tuned", 2, **environment)
    ended = [[1.0] * 4] * 2
    assert first == [seconds, messages, copied, ["allreduce.a", "allreduce.b"], ended]
    assert second == [seconds, messages, 0, [], ended]


def test_ranks_ask_in_different_orders() -> None:
    assert results("orders", 3) == [[3.0 * i for i in range(20)]] * 3


def test_mistakes_are_told_to_all_ranks() -> None:
    first, second = results("mistakes")
    shapes = "ranks disagree on the shapes of 'allreduce.a': rank 0: (1,); rank 1: (2,)"
    assert [first[0], second[0]] == [shapes] * 2
    assert "'allreduce.b' is asked for again" in first[1]
    assert "builtin_function_or_method" in first[2]
    assert second[1].startswith("of rank 0: the object is a")
    assert first[-1] == second[-1] == [1.0]


def test_what_no_operation_takes_is_refused_and_the_job_goes_on() -> None:
    first, *others = results("refused_by_all", 3)
    for said in (first, *others):
        assert said[0] == "allreduce of 'allreduce.noname.0': bools have no average"
        assert "bools have no average" in said[1]
        assert "a tensor without axes has no rows to give" in said[2]
        assert said[-3:] == [True, [], [3.0]]
    assert first[3] == "allreduce of 'allreduce.alone': its process set has been removed"


def test_objects_that_cannot_travel_are_told_to_all_ranks() -> None:
    first, second = results("objects")
    assert first == second
    said, conjugate, negative = first
    assert said[0::2] == said[1::2]
    assert "the object[0] cannot travel: TypeError: a tensor of torch.sparse_coo" in said[0]
    assert "the object[0] cannot travel: TypeError: a tensor on meta" in said[2]
    assert "the object[0] cannot travel: UnicodeEncodeError" in said[4]
    assert (conjugate, negative) == ([-2.0], [-2.0])


def test_ranks_that_join_give_zeros() -> None:
    first, second = results("uneven")
    assert first == [[[2.0, 2.0]], 1]
    assert second == [[[2.0, 2.0], [1.0, 1.0]], 1]


def test_what_is_outstanding_when_a_rank_joins_gets_its_own_result() -> None:
    first, second = results("outstanding_while_joined")
    assert first == [[1.0] * 3, [1.0] * 3, [21.0] * 3]
    assert second == [[21.0] * 3]


def test_process_sets() -> None:
    first, second, third = results("sets", 3)
    assert first == [1, 0, [2.0], [3.0], True]
    assert second == [1, 1, [2.0], [3.0], True]
    assert third == [1, -1, None, [3.0], True]


def test_a_process_set_that_fails_ends_the_job_for_all_ranks() -> None:
    for said, total in results("set_that_fails", 3):
        assert "process set 1, which numbers the ranks [0, 1] from 0: rank 0" in said
        assert said.endswith("the two have had enough")
        assert total == [3.0]


def test_ranks_are_numbers_of_any_kind() -> None:
    for rank, (found, said, total) in enumerate(results("numbers", 3)):
        assert found == [1] * (6 if rank < 2 else 3)
        assert said[:2] == [
            "a root is a whole number, not 0.5",
            "a rank is a whole number, not 0.5",
        ]
        assert "cannot be told to the other ranks: 'utf-8' codec can't encode" in said[2]
        assert total == 3


def test_a_process_set_ends_with_its_job_and_can_be_added_again() -> None:
    for rank, found in enumerate(results("sets_of_another_job")):
        said, *others = found
        ended = "ProcessSet(process_set_id={}, ranks=[1]) {}"
        assert said == [
            *[ended.format(1, "ended with its group: hvd.add_process_set() it again")] * 2,
            ended.format(2, "has been added already"),
        ]
        assert others == [False, True, [[0, -1], [-1, 0]][rank], [1.0]]


def test_gradients_go_through_operations() -> None:
    first, second = results("gradients")
    # Horovod's: averages of allgather and broadcast; of a sum's rows twice those of an average's.
    shared = [[1.0, 2.0, 2.0], [0.5, 1.0, 1.0]]
    assert first[0] == [[0.0, 1.0], [2.0, 2.0], [0.0] * 3, [1.0, 2.0, 4.0], *shared]
    assert second[0] == [[2.0, 3.0], [2.0, 2.0], [1.5, 3.0, 4.5], [2.0, 6.0, 8.0], *shared]
    for differences in (*first[1:], *second[1:]):
        assert len(differences) >= 5
        assert max(differences) < 1e-4


def test_deterministic_jobs_have_the_same_bits_with_any_table(tmp_path: Path) -> None:
    plain, tuned, *deterministic = bits(tmp_path)
    assert tuned != plain  # else the table shows nothing
    assert deterministic == [plain] * 2


@pytest.mark.parametrize("program", ["train", "train_grouped"])
def test_training_is_that_of_one_process(program: str) -> None:
    first, second = results(program)
    assert first == second
    (alone,) = results("train_alone", 1)
    for mine, theirs in zip(first, alone, strict=True):
        for row, other in zip(mine, theirs, strict=True):
            assert row == pytest.approx(other, rel=1e-4, abs=1e-6)


def test_training_without_names_beside_unnamed_operations() -> None:
    first, second = results("train_unnamed")
    assert first == second


def test_training_by_adasum_reduces_steps() -> None:
    (first, said, alone), (second, _, _) = results("train_adasum")
    assert first == second
    assert "step() itself reduces" in said
    for mine, theirs in zip(first, alone, strict=True):
        assert np.array(mine) == pytest.approx(np.array(theirs), rel=1e-4, abs=1e-6)


def test_adasum_reduces_once_there_are_others() -> None:
    first, second = results("train_adasum_among_others_later")
    assert first == [[1.0, 0.0], [1.0, 1.0]]
    assert second == [[0.0, 1.0], [1.0, 1.0]]


def test_several_passes_for_a_step() -> None:
    first, second = results("train_passes")
    assert first == second


OPTIMIZERS = "tests.horovod.optimizer_programs"


def test_a_scheduler_of_the_inner_optimizer_keeps_its_groups() -> None:
    assert results("scheduled", 2, OPTIMIZERS) == [[[[0.5, 0.25, 0.25], True]] * 2] * 2


def test_sparse_gradients_that_are_reduced_as_dense_ones_are_sparse_again() -> None:
    first, second = results("train_sparse", 2, OPTIMIZERS)
    assert first == second
    wanted = [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.5]]
    assert first[0] == [[1, each] for each in wanted]


def test_one_operation_that_fails_does_not_abandon_others() -> None:
    for said, gradient, tensor in results("one_of_two_fails", 2, OPTIMIZERS):
        assert ["ranks disagree on the shapes" in each for each in said] == [True, True]
        assert gradient == [1.5, 1.5]
        assert tensor == [[1.0, 1.0]] * 3


def test_a_rank_that_dies_is_named() -> None:
    said, nothing = results("die")
    assert nothing is None
    assert "rank 1" in said


def test_a_timeline(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    results("orders", 2, HOROVOD_TIMELINE=str(path), HOROVOD_TIMELINE_MARK_CYCLES="1")
    events = json.loads(path.read_text())
    found = {event.get("name") for event in events}
    assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "CYCLE_START", "process_name"} <= found
    begins, ends = (sum(event["ph"] == phase for event in events) for phase in "BE")
    assert begins == ends == 2 * 20 * 3


def test_who_keeps_the_others_waiting_is_named() -> None:
    (said, first), (_, second) = results("stall", HOROVOD_STALL_CHECK_TIME_SECONDS="0.1")
    assert "allreduce.late waits for rank 1" in said
    assert first == second == [1.0]


def test_a_rank_that_leaves_ends_the_job_and_another_one_can_begin() -> None:
    (said, first), (other, second) = results("leave_and_come_back")
    assert said.startswith("Horovod has been shut down; Horovod has not been initialized")
    assert other.startswith("; Horovod has not been initialized")
    assert first == second == [2.0]


def started_by(launcher: list[str], environment: Mapping[str, str]) -> None:
    """Two ranks; the launcher says which is which."""
    done = subprocess.run(
        [*launcher, Path(__file__).parent / "launched.py"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    # Lines of two processes may come as one.
    said = [json.loads(each) for each in re.findall(r"\{[^{}]*\}", done.stdout)]
    wanted = [{"rank": rank, "local": rank, "ranks": [0, 1]} for rank in range(2)]
    assert sorted(said, key=itemgetter("rank")) == wanted, done.stderr


@pytest.mark.parametrize("contender", [Mpich(), OpenMpi()], ids=["MPICH", "Open MPI"])
def test_a_launcher_of_mpi(contender: MpiContender) -> None:
    program = mpi.launcher(contender.kind)
    if program is None:
        pytest.skip(f"no mpiexec of {contender.kind.called} beside this Python or in PATH")
    started_by([str(program), "-n", "2", sys.executable], contender.settings(2))


def test_torchrun() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    started_by([*torchrun, "--nproc-per-node=2"], {"OMP_NUM_THREADS": "1"})
