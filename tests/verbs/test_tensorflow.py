"""A parameter server and two workers: over RDMA the same losses as over stock gRPC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.tensorflow.conftest import PLUGIN, STOCK
from tests.verbs.processes import ROOT

from tensorwire.launch import free_ports

pytestmark = [
    pytest.mark.timeout(420),
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow"),
]

PROGRAM = Path(__file__).parent / "training.py"
TASKS = [("ps", 0), ("worker", 0), ("worker", 1)]


def test_training_over_verbs_gives_the_bits_of_stock() -> None:
    clusters = {protocol: cluster() for protocol in (STOCK, PLUGIN)}
    tasks = [start(job, task, clusters) for job, task in TASKS]
    try:
        found = [{**told(task), **told(task)} for task in tasks]  # of both clusters
        for losses in found[1:]:
            assert losses[PLUGIN] == losses[STOCK]
            first, *_, last = map(float.fromhex, losses[STOCK])
            assert last < first
        ways = told_at_the_end(tasks[0])
    finally:
        for task in tasks:
            with task:  # waits for it and closes its pipes
                task.kill()
    assert ways["received_verbs"] > 0
    assert ways["received_tcp"] == ways["received_shm"] == ways["received_in_place"] == 0


def cluster() -> dict[str, list[str]]:
    ports = free_ports(len(TASKS))
    found: dict[str, list[str]] = {}
    for (job, _), port in zip(TASKS, ports, strict=True):
        found.setdefault(job, []).append(f"127.0.0.1:{port}")
    return found


def start(job: str, task: int, clusters: dict[str, Any]) -> subprocess.Popen[str]:
    order = {"clusters": clusters, "job": job, "task": task}
    return subprocess.Popen(
        [sys.executable, PROGRAM, json.dumps(order)],
        cwd=ROOT,
        env={
            **os.environ,
            "TENSORWIRE_TRANSPORT": "verbs",
            "TF_CPP_MIN_LOG_LEVEL": "1",
            "TF_ENABLE_ONEDNN_OPTS": "0",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def told(task: subprocess.Popen[str]) -> dict[str, Any]:
    assert task.stdout is not None
    line = task.stdout.readline()
    assert line, "a task has ended; its error is above"
    found: dict[str, Any] = json.loads(line)
    return found


def told_at_the_end(task: subprocess.Popen[str]) -> dict[str, Any]:
    assert task.stdin is not None
    task.stdin.close()
    return told(task)
