# SPDX-License-Identifier: Apache-2.0
"""A parameter server and two workers: over RDMA the same losses as over stock gRPC."""

from __future__ import annotations

import multiprocessing
from importlib.util import find_spec
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from tests.tensorflow.conftest import PLUGIN, STOCK

from tensorwire.launch import free_ports

pytestmark = [
    pytest.mark.timeout(420),
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow"),
]

Cluster = dict[str, list[str]]
TASKS = [("ps", 0), ("worker", 0), ("worker", 1)]


def test_training_over_verbs_gives_the_bits_of_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", "verbs")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    clusters = {protocol: cluster() for protocol in (STOCK, PLUGIN)}
    tasks = [start(job, index, clusters) for job, index in TASKS]
    try:
        found = [test.recv() for _, test in tasks]
        for losses in found[1:]:
            assert losses[PLUGIN] == losses[STOCK]
            first, *_, last = map(float.fromhex, losses[STOCK])
            assert last < first
        server = tasks[0][1]
        server.send("how?")
        ways = server.recv()
    finally:
        for process, _ in tasks:
            process.kill()
            process.join()
    assert ways["received_verbs"] > 0
    assert ways["received_tcp"] == ways["received_shm"] == ways["received_in_place"] == 0


def cluster() -> Cluster:
    ports = free_ports(len(TASKS))
    found: Cluster = {}
    for (job, _), port in zip(TASKS, ports, strict=True):
        found.setdefault(job, []).append(f"127.0.0.1:{port}")
    return found


def start(job: str, index: int, clusters: dict[str, Cluster]) -> tuple[BaseProcess, Connection]:
    """Tasks come from a process that has imported TensorFlow: a minute for each under emulation."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.verbs.training"])
    test, task = context.Pipe()
    process = context.Process(target=train, args=(clusters, job, index, task))
    process.start()
    task.close()
    return process, test


def train(*arguments: Any) -> None:
    from tests.verbs import training  # which the fork server has; the test needs no TensorFlow

    training.run(*arguments)
