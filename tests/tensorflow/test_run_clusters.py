# SPDX-License-Identifier: Apache-2.0
"""Unmodified TensorFlow programs under ``tensorwire run --launch``, one for each of TensorFlow's
ways to make a cluster: they compute what they should, and their tensors take tensorwire's way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Container
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.tensorflow.counters import LABELS

from tensorwire import launch

pytestmark = [
    pytest.mark.timeout(600),  # the first one builds the plugin
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow"),
]

PROGRAMS = Path(__file__).parent / "programs"
COMMAND = [sys.executable, "-c", "from tensorwire.cli import main; main()", "run", "--stats"]
BY_LINK = ("received_in_place", "received_shm", "received_tcp", "collective_grouped")
BY_GRPC = ("received_grpc", "collective_ungrouped")


class Result:
    """What the processes of a cluster printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def counted(self, task: str) -> dict[str, int]:
        """The rows of a task's table, by the names of the counters."""
        found: defaultdict[str, int] = defaultdict(int)
        for name, label in LABELS.items():
            row = rf"^\[{task}\] +{re.escape(label.strip())} +(\d+)"
            if match := re.search(row, self.err, re.MULTILINE):
                found[name] = int(match[1])
        return found

    def by_link(self, task: str) -> int:
        return sum(self.counted(task)[name] for name in BY_LINK)

    def by_grpc(self, task: str) -> int:
        return sum(self.counted(task)[name] for name in BY_GRPC)


def run(program: str, spec: str, *arguments: str, **environment: str) -> Result:
    command = [*COMMAND, "--launch", spec, "--", sys.executable, str(PROGRAMS / program)]
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1", **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )
    return Result(done.returncode, done.stdout, done.stderr)


FLAGS = (
    "--job_name={job}",
    "--task_index={index}",
    "--ps_hosts={ps_hosts}",
    "--worker_hosts={worker_hosts}",
    "--server_protocol=grpc",
)


def test_sessions() -> None:
    ours = run("sessions.py", "ps=1,worker=2", *FLAGS)
    assert ours.code == 0, ours.err
    for worker in ("worker 0", "worker 1"):
        assert ours.by_link(worker) >= 10, ours.err
        assert ours.by_grpc(worker) == 0, ours.err
    assert ours.by_link("ps 0") >= 10, ours.err

    stock = run("sessions.py", "ps=1,worker=2", *FLAGS, TF_RDMA_ENABLED="false")
    assert stock.code == 0, stock.err
    assert stock.err.count("stock gRPC, because TF_RDMA_ENABLED=false") == 3
    assert sorted(stock.out.splitlines()) == sorted(ours.out.splitlines())
    assert len(re.findall("loss", ours.out)) == 2


TASKS = ("ps 0", "worker 0", "worker 1")


def run_mixed(ours: Container[str]) -> Result:
    """``sessions.py`` on a ps and two workers, each started by itself: those of ``ours`` by
    ``tensorwire run``, the others as they are."""
    cluster = launch.cluster("ps=1,worker=2")
    started: list[subprocess.Popen[str]] = []
    said = ["", ""]
    try:
        for task in cluster.tasks:
            program = [sys.executable, str(PROGRAMS / "sessions.py"), *cluster.fill(FLAGS, task)]
            started.append(
                subprocess.Popen(
                    [*COMMAND, "--", *program] if str(task) in ours else program,
                    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        for name, process in reversed(list(zip(TASKS, started, strict=True))):
            if name.startswith("ps"):
                process.terminate()
            for at, text in enumerate(process.communicate(timeout=300)):
                said[at] += "".join(f"[{name}] {line}\n" for line in text.splitlines())
    finally:
        for process in started:
            process.kill()
            process.wait()
    return Result(max(process.returncode for process in started), *said)


@pytest.fixture(scope="module")
def stock() -> list[str]:
    """What the workers of a cluster without tensorwire print."""
    result = run_mixed(())
    assert len(re.findall("loss", result.out)) == 2, result.err
    return sorted(result.out.splitlines())


@pytest.mark.parametrize("ours", [("ps 0", "worker 1"), ("worker 1",)])
def test_some_processes_run_without_tensorwire(stock: list[str], ours: tuple[str, ...]) -> None:
    result = run_mixed(ours)
    assert result.code == 0, result.err
    assert sorted(result.out.splitlines()) == stock
    assert result.err.count("tensorwire in process") == len(ours)
    met = "ps 0" in ours
    assert (result.by_link("worker 1") >= 10) == met, result.err
    assert (result.by_grpc("worker 1") == 0) == met, result.err
    if met:  # what comes from worker 0
        assert result.counted("ps 0")["grpc_because_peer"] >= 10, result.err


@pytest.mark.parametrize(
    ("program", "spec", "receivers"),
    [
        ("parameter_server.py", "chief=1,ps=1,worker=1", ("worker 0", "ps 0")),
        ("keras_fit.py", "chief=1,ps=1,worker=1", ("worker 0", "ps 0")),
        ("connect.py", "chief=1,ps=1,worker=1", ("worker 0",)),
        ("mirrored.py", "worker=2", ("worker 0", "worker 1")),
    ],
    ids=["parameter_server", "keras_fit", "connect", "mirrored"],
)
def test_strategies(program: str, spec: str, receivers: tuple[str, ...]) -> None:
    result = run(program, spec)
    assert result.code == 0, result.err
    assert "as expected" in result.out
    for task in receivers:
        assert result.by_link(task) > 0, result.err
        assert result.by_grpc(task) == 0, result.err


def written(page: str, name: str, folder: Path) -> str:
    """The path of a program that a page has."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    found = re.search(rf"^```py\n(# {re.escape(name)}\n.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    program = folder / name
    program.write_text(found[1])
    return str(program)


def test_the_program_of_the_page(tmp_path: Path) -> None:
    """The 200 variables are one tensor of each step, and their gradients are planned in one of the
    first of its 50 steps."""
    program = written("tensorflow.md", "planned.py", tmp_path)
    result = run(program, "ps=1,worker=1", TENSORWIRE_TF_PLAN="on")
    assert result.code == 0, result.err
    assert re.search(r"^\[worker 0\] loss \d", result.out, re.MULTILINE)
    counted = {task: result.counted(task) for task in ("worker 0", "ps 0")}
    for one, other, tensors in (("worker 0", "ps 0", 1), ("ps 0", "worker 0", 200)):
        assert counted[one]["planned_edges"] == tensors, result.err
        assert counted[one]["received_planned"] == counted[other]["served_planned"], result.err
        assert tensors * 40 <= counted[one]["received_planned"] <= tensors * 48, result.err
        assert result.by_grpc(one) == 0, result.err
    assert counted["worker 0"]["coalesced_reads"] == 200, result.err


def test_the_program_of_the_tutorial(tmp_path: Path) -> None:
    result = run(written("tutorials/tensorflow_job.md", "train.py", tmp_path), "worker=2")
    assert result.code == 0, result.err
    assert sorted(re.findall(r"^\[worker (\d)\] loss \d", result.out, re.MULTILINE)) == ["0", "1"]
    for task in ("worker 0", "worker 1"):
        assert result.counted(task)["collective_grouped"] >= 20, result.err
        assert result.by_grpc(task) == 0, result.err
