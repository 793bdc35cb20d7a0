# SPDX-License-Identifier: Apache-2.0
"""Benchmarks that a launcher starts on several ranks: by the variables that launchers set, and by
those launchers that are installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tensorwire.bench.harness.network import Host, Link, NetworkError, hosts
from tensorwire.cli import app

LIMIT_SECONDS = 100.0
WIDE = {"COLUMNS": "250", "TERM": "dumb"}
QUICK = (
    *("--rounds", "1", "--seconds", "0.01", "--warm-up", "0", "--no-limits", "--transport", "tcp"),
    *("--scheme", "uniform", "--categories", "small", "--buffers", "2", "--origin", "ordinary"),
)


@contextmanager
def ranks(
    environments: list[dict[str, str]], arguments: tuple[str, ...], places: list[Host]
) -> Iterator[list[tuple[int, str, str]]]:
    """What became of each rank: its code, its output and its errors."""
    started = [
        subprocess.Popen(
            [*place.enter, sys.executable, "-m", "tensorwire", "bench", *arguments],
            env={**os.environ, **environment, **WIDE},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for place, environment in zip(places, environments, strict=True)
    ]
    try:
        told = [process.communicate(timeout=LIMIT_SECONDS) for process in started]
        yield [(process.returncode, *each) for process, each in zip(started, told, strict=True)]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def slurm(folder: Path, size: int) -> list[dict[str, str]]:
    """Of the tasks of a step on one host."""
    step = {"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
    return [
        {
            **step,
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_NUM_TASKS": str(size),
            "XDG_RUNTIME_DIR": str(folder),
        }
        for rank in range(size)
    ]


def here(size: int) -> list[Host]:
    return [Host("", ())] * size


@pytest.mark.timeout(120)
def test_ranks_on_one_host(tmp_path: Path) -> None:
    arguments = ("ps-throughput", *QUICK, "--json")
    with ranks(slurm(tmp_path, 2), arguments, here(2)) as (first, other):
        assert first[0] == 0, first
        report = json.loads(first[1])
        details = report["details"]
        assert (details["servers"], details["workers"], len(details["hosts"])) == (1, 1, 2)
        rows = [(row["contender"], row["transport"]) for row in report["rows"]]
        assert rows == [("grpcio", "grpc"), ("tensorwire", "tcp")]
        for samples in details["samples"]:
            assert min(samples["figures"]["memory, MiB"]) > 1
        assert other == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(120)
def test_ranks_end_as_rank_0_does(tmp_path: Path) -> None:
    arguments = ("ps-throughput", *QUICK, "--large", "11M")
    with ranks(slurm(tmp_path, 2), arguments, here(2)) as (first, other):
        assert first[0] == 2
        assert "no large buffer" in first[2]
        assert other == (2, "", "")


@pytest.mark.timeout(120)
def test_ranks_on_two_hosts(tmp_path: Path) -> None:
    """As torchrun starts them, in network namespaces."""
    token = tmp_path / "token"
    token.write_text("a-secret-of-some-length\n")
    # As long as it takes until a busy host has moved something between two samples.
    longer = ("--seconds", "0.3")
    arguments = ("p2p-latency", *QUICK, *longer, "--json", "--token-file", str(token))
    try:
        with hosts(Link("1gbit"), 2) as places:
            meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": places[0].address, "MASTER_PORT": "29500"}
            environments = [{**meeting, "RANK": str(rank)} for rank in range(2)]
            with ranks(environments, arguments, places) as (first, other):
                assert first[0] == 0, first
                assert other == (0, "", "")
                report = json.loads(first[1])
    except NetworkError as error:
        pytest.skip(str(error))
    rows = [(row["contender"], row["transport"]) for row in report["rows"]]
    assert rows == [("grpcio", "grpc"), ("tensorwire", "tcp")]
    for samples in report["details"]["samples"]:
        assert min(samples["figures"]["memory, MiB"]) > 1
        assert sum(samples["figures"]["received, MB/s"]) > 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "launcher",
    [
        ["torchrun", "--standalone", "--nproc-per-node=2", "--no-python"],
        ["mpiexec", "-n", "2"],
        ["mpirun.mpich", "-n", "2"],
        ["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root", "-n", "2"],
    ],
    ids=lambda words: words[0],
)
def test_real_launchers(launcher: list[str], tmp_path: Path) -> None:
    beside = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    if (program := shutil.which(launcher[0], path=beside)) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    output = tmp_path / "report.json"
    bench = (sys.executable, "-m", "tensorwire", "bench", "p2p-latency", *QUICK)
    done = subprocess.run(
        [program, *launcher[1:], *bench, "--output", str(output)],
        env={**os.environ, **WIDE},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    assert len(report["details"]["hosts"]) == 2
    rows = [(row["contender"], row["transport"]) for row in report["rows"]]
    assert rows == [("grpcio", "grpc"), ("tensorwire", "tcp")]


FAR = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "arguments", "told"),
    [
        (FAR, ("--network", "1gbit"), "a launcher starts the other processes"),
        (FAR, ("--connect", "node1"), "a launcher starts the other processes"),
        (FAR, ("--serve",), "a launcher starts the other processes"),
        (FAR, (), "both ends have"),
        ({**FAR, "RANK": "2"}, (), "RANK=2 is no rank of"),
        ({**FAR, "MASTER_ADDR": ""}, (), "set MASTER_ADDR"),
    ],
)
def test_wrong_usage_is_told(
    environment: Mapping[str, str], arguments: tuple[str, ...], told: str
) -> None:
    done: Any = CliRunner().invoke(
        app, ["bench", "p2p-latency", *arguments], env={**environment, **WIDE}
    )
    assert done.exit_code == 2
    assert told in done.output
