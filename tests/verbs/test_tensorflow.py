# SPDX-License-Identifier: Apache-2.0
"""A parameter server and two workers: over RDMA the same losses as over stock gRPC."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from tests import forked
from tests.tensorflow.conftest import PLUGIN, STOCK

from tensorwire.launch import free_ports

pytestmark = [
    pytest.mark.timeout(420),
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow"),
]

Cluster = dict[str, list[str]]
TASKS = [("ps", 0), ("worker", 0), ("worker", 1)]


# A minute for each import of TensorFlow under emulation.
def test_training_over_verbs_gives_the_bits_of_stock() -> None:
    clusters = {protocol: cluster() for protocol in (STOCK, PLUGIN)}
    environment = {"TENSORWIRE_TRANSPORT": "verbs", "TF_ENABLE_ONEDNN_OPTS": "0"}
    tasks = [
        forked.start("tests.verbs.training", [clusters, job, index], environment)
        for job, index in TASKS
    ]
    try:
        found = [json.loads(task.stdout.readline()) for task in tasks]
        for losses in found[1:]:
            assert losses[PLUGIN] == losses[STOCK]
            first, *_, last = map(float.fromhex, losses[STOCK])
            assert last < first
        print("how?", file=tasks[0].stdin, flush=True)
        ways = json.loads(tasks[0].stdout.readline())
    finally:
        for task in tasks:
            task.kill()
    assert ways["received_verbs"] > 0
    assert ways["received_tcp"] == ways["received_shm"] == ways["received_in_place"] == 0


def cluster() -> Cluster:
    ports = free_ports(len(TASKS))
    found: Cluster = {}
    for (job, _), port in zip(TASKS, ports, strict=True):
        found.setdefault(job, []).append(f"127.0.0.1:{port}")
    return found
