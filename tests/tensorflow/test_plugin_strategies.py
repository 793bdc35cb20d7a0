# SPDX-License-Identifier: Apache-2.0
"""TensorFlow 2's strategies on clusters of real servers; the coordinator is one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.tensorflow.conftest import PLUGIN, Cluster, Task

from tensorwire.launch import free_ports

pytestmark = pytest.mark.timeout(300)

COORDINATOR = """
import json, sys
import tensorflow as tf
import tensorwire.tensorflow as tt
spec, late = map(json.loads, sys.argv[1:])
if late:
    tf.constant(1.0)
tt.enable()
for _ in range(2):
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec(spec), job_name="chief", task_index=0, protocol="grpc+tensorwire"
    )
with tf.device("/job:ps/task:0"):
    v = tf.Variable(tf.zeros([300, 1000]))

@tf.function
def step(one):
    with tf.device("/job:chief/task:0"):
        mine = tf.fill([300, 1000], one)
    with tf.device("/job:worker/task:0"):
        gradient = v.read_value() * 0.0 + mine + 1.0
    with tf.device("/job:ps/task:0"):
        v.assign_add(gradient)

for _ in range(20):
    step(tf.constant(1.0))
got = v.numpy()
assert (got == 40.0).all(), got
with tf.device("/job:worker/task:0"):
    total = tf.reduce_sum(v + 1.0)
assert total.numpy() == 41.0 * 300000, total
print(json.dumps(tt.stats()))
"""


MIRRORED = """
import json
import tensorflow as tf
import tensorwire.tensorflow as tt
tt.enable(replace_grpc=True)
communication = tf.distribute.experimental
ring = communication.CommunicationOptions(
    implementation=communication.CommunicationImplementation.RING
)
counted = []
for _ in range(3):
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)

    def replica():
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([100_000]))

    step = tf.function(lambda: strategy.run(replica))
    for _ in range(3):
        found = step().numpy()
        assert found.min() == found.max() == 2.0, found
    counted.append(tt.stats())
print(json.dumps(counted))
"""


BITS = """
import hashlib, json, os, sys
import numpy as np
import tensorflow as tf
import tensorwire.tensorflow as tt
tt.enable(replace_grpc=True)
communication = tf.distribute.experimental
ring = communication.CommunicationOptions(
    implementation=communication.CommunicationImplementation.RING
)
sizes, *settings = map(json.loads, sys.argv[1:])
found = []
for deterministic, tuning in settings:
    os.environ.update(TENSORWIRE_DETERMINISTIC=deterministic, TENSORWIRE_TUNING=tuning)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)
    numbers = np.random.default_rng(strategy.cluster_resolver.task_id)
    mine = [tf.constant(numbers.random(size, np.float32)) for size in sizes]

    def replica():
        context = tf.distribute.get_replica_context()
        return [context.all_reduce(tf.distribute.ReduceOp.SUM, each) for each in mine]

    sums = tf.function(lambda: strategy.run(replica))()
    found.append([hashlib.sha256(each.numpy().tobytes()).hexdigest() for each in sums])
print(json.dumps([found, tt.stats()]))
"""


def outputs(program: str, count: int, *arguments: str, **environment: str) -> list[Any]:
    """What each of so many workers, in a process of its own, has printed as JSON."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(count)]
    started = []
    try:
        for index in range(len(workers)):
            task = {"type": "worker", "index": index}
            config = json.dumps({"cluster": {"worker": workers}, "task": task})
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", program, *arguments],
                    env={
                        **os.environ,
                        "TF_CPP_MIN_LOG_LEVEL": "1",
                        "TF_CONFIG": config,
                        **environment,
                    },
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        said = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait(60)
    for process, (_, err) in zip(started, said, strict=True):
        assert process.returncode == 0, err[-3000:]
    return [json.loads(out) for out, _ in said]


def test_each_strategy_of_a_program_has_a_group(tensorflow: Any) -> None:
    for counted in outputs(MIRRORED, 2):
        grouped = [stats["collective_grouped"] for stats in counted]
        assert 0 < grouped[0] < grouped[1] < grouped[2]
        assert counted[-1]["groups"] == 3
        assert counted[-1]["collective_ungrouped"] == counted[-1]["collective_grpc"] == 0


def test_deterministic_runs_have_the_same_bits_with_any_table(
    tensorflow: Any, tmp_path: Path
) -> None:
    """Sums by three workers over TCP. The second run has a table that says otherwise; in the first
    one it counts, where that is allowed."""
    table = tmp_path / "table"
    table.write_text("all_reduce tcp 3 281474976710656 ring\n")
    sizes = [1000, 50_000, 1_000_003]
    by_table, alone, beside_it = (
        json.dumps(each) for each in (("off", str(table)), ("on", "off"), ("on", str(table)))
    )
    found: list[list[str]] = []
    for settings in ((by_table, alone), (beside_it,)):
        run = outputs(BITS, 3, json.dumps(sizes), *settings, TENSORWIRE_TRANSPORT="tcp")
        for sums, stats in run:
            assert sums == run[0][0]
            assert stats["collective_grouped"] >= len(sizes) * len(settings)
            assert stats["collective_ungrouped"] == stats["collective_grpc"] == 0
        found += run[0][0]
    tuned, first, second = found
    assert tuned != first  # else the table shows nothing
    assert second == first


@pytest.mark.parametrize("late", [False, True])
def test_a_function_over_a_connected_cluster(tensorflow: Any, late: bool) -> None:
    tasks: dict[Task, str] = {("ps", 0): PLUGIN, ("worker", 0): PLUGIN}
    cluster = Cluster(tasks, {})
    cluster.spec["chief"] = [f"127.0.0.1:{free_ports(1)[0]}"]
    try:
        for task in tasks:
            cluster.start([task])
        cluster.wait_ready()
        done = subprocess.run(
            [sys.executable, "-c", COORDINATOR, json.dumps(cluster.spec), json.dumps(late)],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1"},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        stats = json.loads(done.stdout)
        assert stats["links"] >= 1
        assert stats["served_lent"] >= 20
        assert stats["served_copied"] == 0
        assert cluster.stats("worker")["received_in_place"] >= 20
        assert cluster.stats("ps")["received_in_place"] >= 20
    finally:
        cluster.close()
