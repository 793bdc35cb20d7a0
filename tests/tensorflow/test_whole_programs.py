# SPDX-License-Identifier: Apache-2.0
"""Whole training programs against stock TensorFlow: the same numbers, and TensorFlow's own error
when a peer dies."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.tensorflow.conftest import PLUGIN, STOCK
from tests.tensorflow.counters import LABELS

from tensorwire.bench.suites.train import local
from tensorwire.bench.suites.train.options import Options
from tensorwire.launch import free_ports

pytestmark = pytest.mark.timeout(300)

STEPS = 40
"""Each makes more of a difference of one bit."""
PROGRAM = Path(__file__).parent / "programs" / "endless_ring.py"
RUN = [sys.executable, "-c", "from tensorwire.cli import main; main()", "run", "--stats", "--"]

Losses = list[list[float]]


def trained(protocol: str, **environment: str) -> tuple[Losses, dict[str, int]]:
    """The losses of each worker, and the parameter server's counters at the end."""
    options = Options(
        model="lenet",
        data_name="digits",
        batch_size=4,
        num_warmup_batches=0,
        num_batches=STEPS,
        learning_rate=0.01,
        num_intra_threads=1,
        server_protocol=protocol,
    )
    outcome = local.run(options, "ps=1,worker=2", show=lambda *_: None, environment=environment)
    counts: dict[str, int] = outcome.servers[0]["samples"][-1]["counts"]
    return [worker["losses"] for worker in outcome.workers], counts


@pytest.fixture(scope="module")
def stock(tensorflow: Any) -> Losses:
    found, _ = trained(STOCK)
    assert [len(each) for each in found] == [STEPS, STEPS]
    assert all(each[-1] < each[0] for each in found)
    return found


@pytest.mark.parametrize(
    ("environment", "way"),
    [
        ({}, "received_in_place"),
        ({"TENSORWIRE_TF_ARENA": "traced"}, "received_in_place"),
        ({"TENSORWIRE_TF_ARENA": "off"}, "received_shm"),
        ({"TENSORWIRE_TRANSPORT": "tcp"}, "received_tcp"),
        ({"TENSORWIRE_TF_PLAN": "on"}, "received_planned"),
    ],
)
def test_training_gives_the_bits_of_stock(
    stock: Losses, environment: dict[str, str], way: str
) -> None:
    losses, counts = trained(PLUGIN, **environment)
    assert losses == stock
    assert counts[way] >= STEPS
    assert counts["received_grpc"] == 0


class Worker:
    """One of two processes of ``endless_ring.py``."""

    def __init__(self, hosts: list[str], index: int, **environment: str) -> None:
        config = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "1"}
        self.child = subprocess.Popen(
            [*RUN, sys.executable, str(PROGRAM)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **quiet, **environment, "TF_CONFIG": json.dumps(config)},
        )

    def wait_steps(self, count: int) -> None:
        assert self.child.stdout is not None
        for _ in range(count):
            assert self.child.stdout.readline() == "step\n", self.child.communicate(timeout=60)[1]

    def kill(self) -> None:
        self.child.kill()
        self.child.communicate(timeout=60)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_killed_in_a_ring_ends_the_other(
    tensorflow: Any, victim: int, transport: str
) -> None:
    hosts = [f"127.0.0.1:{port}" for port in free_ports(2)]
    workers = [Worker(hosts, index, TENSORWIRE_TRANSPORT=transport) for index in range(2)]
    try:
        for worker in workers:
            worker.wait_steps(5)
        workers[victim].kill()
        _, said = workers[1 - victim].child.communicate(timeout=30)
    finally:
        for worker in workers:
            worker.child.kill()
            worker.child.wait(60)
    assert workers[1 - victim].child.returncode != 0
    assert "UnavailableError" in said, said
    assert re.search(rf"{re.escape(LABELS['collective_grouped'])} +[1-9]", said), said
    assert LABELS["collective_ungrouped"] not in said, said
