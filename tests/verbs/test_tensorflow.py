# SPDX-License-Identifier: Apache-2.0
"""A parameter server and two workers: over RDMA the same losses as over stock gRPC, by calls and by
plans."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from tests import forked
from tests.tensorflow.conftest import PLUGIN, STOCK

from tensorwire.launch import free_ports

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow"),
]

Cluster = dict[str, list[str]]
Losses = dict[str, list[str]]
"""By protocol, each a float in hexadecimal."""
TASKS = [("ps", 0), ("worker", 0), ("worker", 1)]


# A minute for the import of TensorFlow under emulation.
def trained(protocols: list[str], **environment: str) -> tuple[list[Losses], dict[str, int]]:
    """What each worker has lost, by protocol, and how it came to the parameter server."""
    clusters = {protocol: cluster() for protocol in protocols}
    environment |= {"TENSORWIRE_TRANSPORT": "verbs", "TF_ENABLE_ONEDNN_OPTS": "0"}
    tasks = [
        forked.start("tests.verbs.training", [clusters, job, index], environment)
        for job, index in TASKS
    ]
    try:
        _, *losses = [json.loads(task.stdout.readline()) for task in tasks]
        print("how?", file=tasks[0].stdin, flush=True)
        ways = json.loads(tasks[0].stdout.readline())
    finally:
        for task in tasks:
            task.kill()
    return losses, ways


@pytest.fixture(scope="module")
def by_calls() -> tuple[list[Losses], dict[str, int]]:
    return trained([STOCK, PLUGIN])


def went_by_verbs(ways: dict[str, int]) -> bool:
    others = ("received_tcp", "received_shm", "received_in_place", "received_grpc")
    return ways["received_verbs"] > 0 and not any(ways[name] for name in others)


def test_training_over_verbs_gives_the_bits_of_stock(
    by_calls: tuple[list[Losses], dict[str, int]],
) -> None:
    workers, ways = by_calls
    for losses in workers:
        assert losses[PLUGIN] == losses[STOCK]
        first, *_, last = map(float.fromhex, losses[STOCK])
        assert last < first
    assert went_by_verbs(ways)
    assert ways["received_planned"] == 0


def test_training_that_is_planned_gives_the_same_bits(
    by_calls: tuple[list[Losses], dict[str, int]],
) -> None:
    workers, ways = trained([PLUGIN], TENSORWIRE_TF_PLAN="on")
    assert [losses[PLUGIN] for losses in workers] == [losses[PLUGIN] for losses in by_calls[0]]
    assert went_by_verbs(ways)
    assert ways["received_planned"] > 0


def cluster() -> Cluster:
    ports = free_ports(len(TASKS))
    found: Cluster = {}
    for (job, _), port in zip(TASKS, ports, strict=True):
        found.setdefault(job, []).append(f"127.0.0.1:{port}")
    return found
