# SPDX-License-Identifier: Apache-2.0
"""PyTorch's collectives over the back end, between processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.torch import detail, expanded, hooks, parallelism, programs
from tests.torch.ranks import Ranks, loads_back_ends

import torch
from tensorwire import plugins
from tensorwire.torch import build

ROOT = Path(__file__).resolve().parents[2]
LOADED = loads_back_ends()
TRANSPORTS = pytest.mark.parametrize("transport", ["auto", "tcp"])
pytestmark = pytest.mark.timeout(300)  # the first test may build the plugin


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    build.plugin(build.installed())


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    running = Ranks(tmp_path_factory.mktemp("torch"), 2)
    yield running
    running.close()


def test_the_oldest_release_is_the_one_that_packages_ask_for() -> None:
    asked = re.findall(r'"torch>=([^"]*)"', (ROOT / "pyproject.toml").read_text())
    assert asked == [plugins.text(build.OLDEST)] * 2
    (tested,) = re.findall(
        r"^torch==(.*)", (ROOT / "requirements" / "torch-oldest.txt").read_text(), re.M
    )
    assert plugins.release(tested) == build.OLDEST


@pytest.mark.parametrize(
    ("transport", "ways"), [("auto", ["one_step", "stage"]), ("tcp", ["direct", "pairwise"])]
)
def test_each_operation(two: Ranks, transport: str, ways: list[str]) -> None:
    assert two.results(programs.moves, transport=transport) == [([], ways)] * 2


@TRANSPORTS
def test_types_and_reductions(two: Ranks, transport: str) -> None:
    assert two.results(programs.kinds, transport=transport) == [[], []]


def test_shares_of_different_sizes(two: Ranks) -> None:
    for gathered, scattered, said in two.results(programs.uneven):
        assert gathered
        assert scattered
        assert "elements, and needs" in said


@TRANSPORTS
def test_lists_of_the_parts_of_one_tensor(two: Ranks, transport: str) -> None:
    assert two.results(programs.parts_of_one, transport=transport) == [[], []]


def test_many_tensors_in_one_call(two: Ranks) -> None:
    assert two.results(programs.coalesced) == [[], []]


def test_small_tensors_of_one_call_travel_together(two: Ranks) -> None:
    # Those of each type, and the large one alone.
    assert two.results(programs.side_by_side) == [([], [3, 3, 3, 2])] * 2


def test_small_tensors_of_one_call_have_the_same_sizes_on_all_ranks(two: Ranks) -> None:
    for (said,) in two.results(programs.other_sizes):
        assert "called all_reduce of 8 float32, sum, arrays side by side whose sizes" in said


@TRANSPORTS
def test_messages(two: Ranks, transport: str) -> None:
    found = two.results(programs.messages, transport=transport)
    assert found == [[1.0, 1.0, 11.0, 1], [0.0, 0.0, 10.0, 0]]


def test_a_message_that_has_ended_leaves_no_thread(two: Ranks) -> None:
    assert two.results(programs.a_tag_for_each_step) == [0, 0]


def test_what_cannot_be_done_is_refused(two: Ranks) -> None:
    for found in two.results(programs.refusals):
        assert all(text.startswith("DistBackendError") for text in found), "\n".join(found)
        for text, words in zip(
            found,
            [
                *("dense", "PREMUL_SUM", "itself", "AVG", "bits", "3 elements"),
                *("Float8_e4m3fnuz cannot be reduced", "is on meta"),
            ],
            strict=True,
        ):
            assert words in text


def test_pytorch_checks_what_ranks_ask_for(two: Ranks) -> None:
    for checker, said, total in two.results(detail.checked):
        assert checker == "_ProcessGroupWrapper of tensorwire"
        for text, aspect in zip(said, ["Tensor shapes: ", "Op type: "], strict=True):
            assert "Detected mismatch between collectives on ranks" in text
            assert aspect in text.partition("Collectives differ in the following aspects:")[2]
        assert total == [3.0, 3.0]


def test_nan_is_refused_where_pytorch_checks(two: Ranks) -> None:
    for said, total in two.results(detail.with_nan):
        for text, operation in zip(
            said,
            [
                *("all_reduce a tensor with NaN:",) * 2,
                "reduce a tensor with NaN:",
                *("all_reduce a tensor with NaN:",) * 2,
                "reduce_scatter a tensor with NaN:",
                "reduce_scatter a tensor with NaN, of index 1 in its list:",
                "all_reduce a tensor with NaN, of index 1 in its list:",
            ],
            strict=True,
        ):
            assert text.startswith("DistBackendError"), said
            assert f"rank 1 gave {operation} nothing has been sent" in text
        assert total == [2.0] * 4


def test_a_back_end_for_both_kinds_of_devices(two: Ranks) -> None:
    both = "cpu:tensorwire,cuda:tensorwire"
    assert two.results(programs.messages, backend=both) == two.results(programs.messages)


def test_groups_and_objects(two: Ranks) -> None:
    wanted = (3.0, [{"rank": 0}, {"rank": 1}], ["from 0"], "tensorwire")
    assert two.results(programs.groups_and_objects) == [wanted] * 2


def test_a_root_gives_a_tensor_that_cannot_be_written(two: Ranks) -> None:
    assert two.results(expanded.broadcast) == [[[7.0] * 3] * 2] * 2


def test_operations_keep_their_order(two: Ranks) -> None:
    assert two.results(programs.many_at_once) == [True, True]


def test_callbacks_wait_for_operations_of_their_own(two: Ranks) -> None:
    assert two.results(programs.callbacks) == [[12.0, 20.0, 2.0]] * 2


def test_tensors_are_held_while_operations_need_them(two: Ranks) -> None:
    came = [[1.0], [2.0], [8.0], [5.0], [3.0]]
    assert two.results(programs.freed) == [[True, True], [came, came]]


def test_data_parallel_training_is_that_of_gloo(two: Ranks) -> None:
    (first, bits), (_, other) = two.results(programs.train)
    assert bits == other
    (theirs, _), _ = two.results(programs.train, backend="gloo")
    assert first == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_hooks_of_data_parallel_training_do_what_they_do_over_gloo(two: Ranks) -> None:
    theirs = two.results(hooks.hooked, backend="gloo")
    # The first by name, without NCCL; the others ask for shapes that are there over NCCL alone, or
    # nowhere. PyTorch says so, whatever the back end.
    refused = {"bf16", "batched PowerSGD", "quantized by tensor", "quantized by channel"}
    for found, wanted in zip(two.results(hooks.hooked), theirs, strict=True):
        assert found == {
            name: each if isinstance(each, str) else pytest.approx(each, rel=1e-4, abs=1e-6)
            for name, each in wanted.items()
        }
        assert {name for name, each in found.items() if isinstance(each, str)} <= refused


def test_hooks_that_share_out_the_optimizer(two: Ranks) -> None:
    """PyTorch does not have them run over gloo."""
    if not LOADED:
        pytest.skip("PyTorch 2.4 has them run over NCCL alone")
    first, second = two.results(hooks.sharded)
    assert first == second
    plain, *hooked = first
    for each in hooked:
        assert each == pytest.approx(plain, rel=1e-4, abs=1e-6)


def test_fully_sharded_training(two: Ranks) -> None:
    if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("this PyTorch shards models on GPUs only")
    for sharded, whole in two.results(programs.shard):
        assert sharded == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize(
    "program",
    [
        parallelism.fully_sharded_module,
        parallelism.tensor_parallel,
        parallelism.pipelined,
    ],
)
def test_a_model_shared_out_is_the_whole_one(two: Ranks, program: Callable[..., Any]) -> None:
    if program is parallelism.pipelined and not LOADED:
        pytest.skip("PyTorch 2.4 adds the gradients of parts of a batch up, and takes no average")
    for shared, whole in two.results(program):
        assert shared == pytest.approx(whole, rel=1e-3)


def test_a_rank_that_does_not_come(two: Ranks) -> None:
    waited, _ = two.results(programs.give_up)
    assert waited.startswith("DistBackendError")
    assert "rank 1" in waited


def test_deterministic_groups_have_the_same_bits_with_any_table(tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.write_text("all_reduce tcp 3 281474976710656 ring\n")
    tables = [("off", "off"), ("off", str(table)), ("on", "off"), ("on", str(table))]
    three = Ranks(tmp_path, 3)
    try:
        found = three.results(programs.bits, tables, transport="tcp")
    finally:
        three.close()
    plain, tuned, *deterministic = found[0]
    assert found == [found[0]] * 3
    assert tuned != plain  # else the table shows nothing
    assert deterministic == [plain] * 2


def test_a_monitored_barrier_names_the_ranks_that_have_not_come(tmp_path: Path) -> None:
    four = Ranks(tmp_path, 4)
    try:
        found = four.results(programs.missed)
        assert [total for _, total in found] == [4.0] * 4
        absent = "DistBackendError: {} not come to the monitored barrier within {} ms"
        first = absent.format("rank 1 has", 3000)
        without_0 = absent.format("rank 0 has", 50)
        for rank, (said, _) in enumerate(found):
            if rank % 2 == 1:
                assert said == [without_0] * 3
                continue
            assert said[0] == f"{first}, nor have others: wait_all_ranks=True names them all"
            assert said[1:] == [absent.format("ranks 1, 3 have", 3000), without_0 if rank else ""]
        four.begin(programs.miss_for_ever)
        for rank in range(3):
            assert "rank 3" in four.result(rank)
    finally:
        four.close()


@pytest.mark.parametrize("async_op", [False, True])
def test_ctrl_c_ends_a_wait(two: Ranks, async_op: bool) -> None:
    assert two.results(programs.interrupt, async_op)[0] == "interrupted"


@pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d.Backend, "abort"), reason="this PyTorch has no abort()"
)
def test_abort_ends_what_is_under_way(two: Ranks) -> None:
    for found in two.results(programs.abort):
        assert all("rank 0 has called abort()" in text for text in found), "\n".join(found)


LEAVES = """
import sys, torch, torch.distributed as dist
if sys.argv[3] != "True":
    import tensorwire.torch
dist.init_process_group("tensorwire", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]),
                        world_size=2)
if sys.argv[1] == "0":
    dist.all_reduce(torch.ones(4), async_op=True)
    dist.irecv(torch.ones(4), 1)
else:
    dist.barrier(async_op=True)
"""


def test_a_program_ends_although_something_is_under_way(tmp_path: Path) -> None:
    programs_ = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVES, str(rank), str(tmp_path / "store"), str(LOADED)]
        )
        for rank in range(2)
    ]
    try:
        assert [program.wait(30) for program in programs_] == [0, 0]
    finally:
        for program in programs_:
            program.kill()
            program.wait()


def test_a_rank_that_dies(two: Ranks) -> None:
    """The last one that uses these ranks."""
    two.begin(programs.lose)
    found = two.result(0)
    assert found.count("DistBackendError") == 2
    assert "rank 1" in found


@pytest.mark.skipif(not LOADED, reason="this PyTorch does not find back ends by itself")
def test_torchrun_starts_ranks_again() -> None:
    """With the store of the attempt before, which still says where its ranks were."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    program = Path(__file__).parent / "restarted.py"
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", program], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    # Lines of two processes may come as one.
    said = [json.loads(each) for each in re.findall(r"\{[^{}]*\}", done.stdout)]
    wanted = [{"rank": rank, "attempt": 1, "total": 6.0} for rank in range(2)]
    assert sorted(said, key=itemgetter("rank")) == wanted, done.stderr


@pytest.mark.skipif(not LOADED, reason="this PyTorch does not find back ends by itself")
def test_nothing_is_imported_before_a_group_is_made() -> None:
    program = (
        "import sys, torch\n"
        "assert torch.distributed.is_backend_available('tensorwire')\n"
        "loaded = {'grpc', 'tensorwire._core', 'tensorwire.torch.build'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path("/"))
