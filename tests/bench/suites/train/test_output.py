# SPDX-License-Identifier: Apache-2.0
"""The lines of tf_cnn_benchmarks."""

from __future__ import annotations

import re

import pytest

from tensorwire.bench.suites.train import output
from tensorwire.bench.suites.train.options import Options

CLUSTER = Options(
    model="resnet50",
    batch_size=32,
    job_name="worker",
    ps_hosts=["a:1"],
    worker_hosts=["b:1", "c:1"],
    num_batches=20,
)


def test_header() -> None:
    assert output.header(CLUSTER, "2.21.0", "/job:worker/task:0/cpu:0") == [
        "TensorFlow:  2.21",
        "Model:       resnet50",
        "Mode:        training",
        "Batch size:  64 global",
        "             32 per device",
        "Devices:     ['/job:worker/task:0/cpu:0']",
        "Data format: NHWC",
        "Optimizer:   sgd",
        "Variables:   parameter_server",
        "Sync:        True",
        "==========",
    ]


def test_header_without_a_cluster() -> None:
    lines = output.header(Options(forward_only=True), "2.16.1", "/cpu:0")
    assert lines[2] == "Mode:        forward-only"
    assert not any(line.startswith("Sync") for line in lines)


def test_a_line_of_speed() -> None:
    assert (
        output.speed_line(10, 32, [0.5, 1.0, 2.0], 1.23456)
        == "10\timages/sec: 27.4 +/- 11.5 (jitter = 23.7)\t1.235"
    )
    assert re.fullmatch(
        r"\d+\timages/sec: [\d.]+ \+/- [\d.]+ \(jitter = [\d.]+\)\t[\d.]+",
        output.speed_line(1, 4, [0.1], 7.0),
    )


def test_total() -> None:
    assert output.total_lines(12.345) == ["-" * 64, "total images/sec: 12.35", "-" * 64]


def test_the_watch_counts_the_steps_of_all_workers() -> None:
    shown: list[str] = []
    watch = output.Watch(CLUSTER, shown.append)  # from 2 x 10 to 2 x 30 - 1
    for global_step in range(2, 61, 2):
        watch.saw(global_step, now=global_step / 2.0)
    assert watch.images_per_second() == pytest.approx(64.0)  # 2 steps a second, of 32 images
    assert [line.rpartition(" at time")[0] for line in shown] == [
        "Starting real work at step 20",
        "Finishing real work at step 60",
    ]


def test_a_watch_that_has_seen_too_little_says_nothing() -> None:
    watch = output.Watch(CLUSTER, lambda line: None)
    for global_step in range(2, 40, 2):
        watch.saw(global_step, now=float(global_step))
    assert watch.images_per_second() is None


def test_a_loss_that_is_no_finite_number_is_none() -> None:
    assert output.told([2.5, 0.0, float("inf"), float("nan")]) == [2.5, 0.0, None, None]
    assert output.told([float("nan")]) == output.told([float("nan")])
