# SPDX-License-Identifier: Apache-2.0
"""Ring allreduce between real servers: what is summed, and which way the buffers go."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.tensorflow.conftest import PLUGIN, STOCK, Cluster, eventually, running
from tests.tensorflow.test_plugin_paths import session

pytestmark = pytest.mark.timeout(300)


def reduced(
    tf: Any, target: str, sizes: tuple[int, ...], workers: int, steps: int = 2
) -> list[list[Any]]:
    """What the last of the steps gave, for each size and each worker."""
    with tf.Graph().as_default():
        fetches: list[list[Any]] = [[] for _ in sizes]
        for task in range(workers):
            with tf.device(f"/job:worker/task:{task}/device:CPU:0"):
                for key, size in enumerate(sizes):
                    value = tf.cast(tf.range(size) % 977, tf.float32) * float(task + 1)
                    fetches[key].append(
                        tf.raw_ops.CollectiveReduce(
                            input=value,
                            group_size=workers,
                            group_key=1,
                            instance_key=key + 1,
                            merge_op="Add",
                            final_op="Id",
                            subdiv_offsets=[0],
                        )
                    )
        with session(tf, target) as run:
            options = tf.compat.v1.RunOptions()
            options.experimental.collective_graph_key = 1
            got: list[list[Any]] = []
            for _ in range(steps):
                got = run.run(fetches, options=options)
            return got


@pytest.mark.parametrize("protocols", [(PLUGIN, PLUGIN), (PLUGIN, PLUGIN, PLUGIN), (PLUGIN, STOCK)])
@pytest.mark.parametrize("forbidden", ["", "shm"])
def test_ring(tensorflow: Any, protocols: tuple[str, ...], forbidden: str) -> None:
    tasks = {("worker", task): protocol for task, protocol in enumerate(protocols)}
    sizes = (1, 1000, 3_000_001)
    workers = len(protocols)
    with running(tasks, TENSORWIRE_FORBID=forbidden) as cluster:
        got = reduced(tensorflow, cluster.target("worker"), sizes, workers)
        for size, each in zip(sizes, got, strict=True):
            expected = (np.arange(size) % 977).astype(np.float32) * sum(range(1, workers + 1))
            for one in each:
                np.testing.assert_array_equal(one, expected)
        stats = cluster.stats("worker")
        mixed = STOCK in protocols
        assert (stats["collective_grpc"] > 0) == mixed
        assert (stats["collective_received_bytes"] > 12_000_000) == (not mixed)


def no_leases(cluster: Cluster, task: int) -> bool:
    return cluster.stats("worker", task)["arena_leased"] == 0


def test_a_thousand_rings_leave_nothing_behind(tensorflow: Any) -> None:
    tasks = {("worker", task): PLUGIN for task in range(2)}
    with running(tasks) as cluster:
        target = cluster.target("worker")
        reduced(tensorflow, target, (50_000,), 2, steps=100)
        before = [cluster.stats("worker", task) for task in range(2)]
        reduced(tensorflow, target, (50_000,), 2, steps=1000)
        for task, then in enumerate(before):
            eventually(partial(no_leases, cluster, task), "leases come home")
            now = cluster.stats("worker", task)
            assert now["arena_used"] <= then["arena_used"] + 4 * 200_000
            assert now["arena_high_water"] <= then["arena_high_water"] + 4 * 200_000
            assert now["links"] == then["links"]
            assert now["collective_received"] >= then["collective_received"] + 1000
