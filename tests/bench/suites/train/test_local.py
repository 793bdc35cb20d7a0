# SPDX-License-Identifier: Apache-2.0
"""Real clusters on this machine: a parameter server and two workers, each a process."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorwire import launch
from tensorwire.bench.suites.train import local
from tensorwire.bench.suites.train.data import idx
from tensorwire.bench.suites.train.data.records import masked_crc
from tensorwire.bench.suites.train.figures import figures
from tensorwire.bench.suites.train.options import Options

pytestmark = [
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow"),
    pytest.mark.timeout(240),
]


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """Two images, one black and one white, of class 0 and 1."""
    images = np.repeat(np.array([0, 255], np.uint8), 28 * 28).reshape(2, 28, 28)
    idx.write(tmp_path / "train-images-idx3-ubyte", images)
    idx.write(tmp_path / "train-labels-idx1-ubyte", np.array([0, 1], np.uint8))
    return tmp_path


def trained(**options: Any) -> tuple[local.Outcome, dict[tuple[str, int], list[str]]]:
    lines: dict[tuple[str, int], list[str]] = {}

    def show(job: str, index: int, line: str) -> None:
        lines.setdefault((job, index), []).append(line)

    wanted = {"model": "softmax", "batch_size": 4, "num_batches": 15, "learning_rate": 0.05}
    return local.run(Options(**{**wanted, **options}), "ps=1,worker=2", show=show), lines


def losses(outcome: local.Outcome) -> list[list[float]]:
    return [worker["losses"] for worker in outcome.workers]


def test_a_cluster_learns_and_gives_the_same_bits_again(
    mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, lines = trained(data_dir=mnist)
    first = losses(outcome)
    assert [len(each) for each in first] == [25, 25]
    assert all(each[-1] < each[0] / 2 for each in first)
    assert lines["ps", 0] == ["Running parameter server 0"]
    for worker in (0, 1):
        said = lines["worker", worker]
        assert "Batch size:  8 global" in said
        assert [line.partition("\t")[0] for line in said if "images/sec:" in line] == [
            *("1", "10"),
            said[-2],
        ]
        assert said[-2].startswith("total images/sec: ")
    found = figures(outcome.workers, outcome.servers)
    assert found.cpu_seconds_per_step > 0
    assert found.bytes_per_step is None  # stock gRPC

    replicated, _ = trained(data_dir=mnist, variable_update="distributed_replicated")
    assert losses(replicated) == first

    monkeypatch.setenv("TENSORWIRE_TF_PLAN", "on")
    planned, _ = trained(data_dir=mnist, server_protocol="grpc+tensorwire")
    assert losses(planned) == first
    for each in (*planned.workers, *planned.servers):
        assert each["samples"][-1]["counts"]["received_planned"] > 0


def test_workers_without_servers(mnist: Path) -> None:
    outcome, lines = trained(data_dir=mnist, variable_update="collective_all_reduce")
    assert set(lines) == {("worker", 0), ("worker", 1)}
    assert all(each[-1] < each[0] / 2 for each in losses(outcome))

    ranks, lines = trained(data_dir=mnist, variable_update="horovod")
    assert set(lines) == {("worker", 0), ("worker", 1)}
    assert losses(ranks) == losses(outcome)


@pytest.mark.parametrize("written", [None, '{"task_index": 0, "sam'])
def test_figures_that_a_process_did_not_write_end_the_run(
    written: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(where: launch.Cluster, command: Any, **_more: Any) -> launch.Ended:
        for task in where.tasks:
            (output,) = (
                word.partition("=")[2] for word in command(task) if word.startswith("--output=")
            )
            text = "{}" if task.job == "worker" else written
            if text is not None:
                Path(output).write_text(text)
        return launch.Ended(0)

    monkeypatch.setattr(launch, "run", run)
    with pytest.raises(local.ClusterError, match="ps 0 left no figures") as failed:
        trained()
    assert (failed.value.code, failed.value.signalled) == (1, None)


def test_a_damaged_file_ends_all_and_is_named(mnist: Path) -> None:
    path = mnist / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(local.ClusterError, match=r"train-images-idx3-ubyte: \d+ bytes, but"):
        trained(data_dir=mnist)


def test_a_server_that_is_killed_ends_its_worker(mnist: Path) -> None:
    ps, worker = (f"127.0.0.1:{port}" for port in launch.free_ports(2))
    options = Options(
        model="softmax",
        data_dir=mnist,
        num_batches=10**6,
        display_every=1,
        ps_hosts=[ps],
        worker_hosts=[worker],
    )

    def start(job: str) -> subprocess.Popen[str]:
        arguments = options.but(job_name=job).arguments()
        return subprocess.Popen(
            [sys.executable, "-m", "tensorwire.bench.suites.train", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    with start("ps") as server, start("worker") as training:
        try:
            assert training.stdout is not None
            assert any("images/sec" in line for line in training.stdout)
            server.kill()
            _, said = training.communicate(timeout=60)
        finally:
            server.kill()
            training.kill()
    assert training.returncode == 1
    assert "tensorwire train: a peer is gone" in said or f"ps 0 at {ps} is gone" in said


def test_without_a_compiler_the_reason_is_told(tmp_path: Path) -> None:
    options = Options(
        job_name="ps",
        ps_hosts=["127.0.0.1:1"],
        worker_hosts=["127.0.0.1:2"],
        server_protocol="grpc+tensorwire",
    )
    done = subprocess.run(
        [sys.executable, "-m", "tensorwire.bench.suites.train", *options.arguments()],
        env={**os.environ, "CXX": "/no/such/compiler", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "tensorwire train: TensorFlow's plugin is compiled at first use" in done.stderr
    assert "Traceback" not in done.stderr


def test_records_that_are_no_images_are_named(tmp_path: Path) -> None:
    length = struct.pack("<Q", 3)
    frame = length + struct.pack("<I", masked_crc(length)) + b"abc"
    frame += struct.pack("<I", masked_crc(b"abc"))
    (tmp_path / "train-00000-of-00001").write_bytes(frame * 40)
    done = subprocess.run(
        [sys.executable, "-m", "tensorwire.bench.suites.train", f"--data_dir={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert f"tensorwire train: {tmp_path}: InvalidArgumentError" in done.stderr
