# SPDX-License-Identifier: Apache-2.0
"""Collectives between real servers: by groups of ranks, and by TensorFlow's own ring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.tensorflow.conftest import PLUGIN, STOCK, Cluster, eventually, running
from tests.tensorflow.test_plugin_paths import session

pytestmark = pytest.mark.timeout(300)

RING = {"TENSORWIRE_TF_COLLECTIVES": "ring"}
SIZES = (1, 1000, 3_000_001)


def reduced(
    tf: Any, target: str, sizes: tuple[int, ...], workers: int, steps: int = 2, first_key: int = 1
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
                            instance_key=first_key + key,
                            merge_op="Add",
                            final_op="Id",
                            subdiv_offsets=[0],
                        )
                    )
        with session(tf, target) as run:
            got: list[list[Any]] = []
            for _ in range(steps):
                got = run.run(fetches, options=together(tf))
            return got


def together(tf: Any, **more: Any) -> Any:
    """Options of a step whose collectives are those of all workers."""
    options = tf.compat.v1.RunOptions(**more)
    options.experimental.collective_graph_key = 1
    return options


def check_sums(tf: Any, cluster: Cluster, workers: int) -> None:
    got = reduced(tf, cluster.target("worker"), SIZES, workers)
    for size, each in zip(SIZES, got, strict=True):
        expected = (np.arange(size) % 977).astype(np.float32) * sum(range(1, workers + 1))
        for one in each:
            np.testing.assert_array_equal(one, expected)


@pytest.fixture(scope="module")
def ring(tensorflow: Any) -> Iterator[Cluster]:
    """Two workers that want TensorFlow's own algorithms."""
    with running({("worker", task): PLUGIN for task in range(2)}, **RING) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def group(tensorflow: Any) -> Iterator[Cluster]:
    """Two workers whose collectives go by a group."""
    with running({("worker", task): PLUGIN for task in range(2)}) as cluster:
        yield cluster


def test_two_workers_in_a_ring(tensorflow: Any, ring: Cluster) -> None:
    before = ring.stats("worker")
    check_sums(tensorflow, ring, 2)
    stats = ring.stats("worker")
    assert stats["collective_received_bytes"] - before["collective_received_bytes"] > 12_000_000
    assert stats["collective_ungrouped"] - before["collective_ungrouped"] == 2 * len(SIZES)
    assert stats["collective_grouped"] == stats["groups"] == stats["collective_grpc"] == 0


def test_two_workers_in_a_group(tensorflow: Any, group: Cluster) -> None:
    before = [group.stats("worker", task) for task in range(2)]
    check_sums(tensorflow, group, 2)
    for task, then in enumerate(before):
        stats = group.stats("worker", task)
        assert stats["collective_grouped"] - then["collective_grouped"] == 2 * len(SIZES)
        size = stats["collective_grouped_bytes"] - then["collective_grouped_bytes"]
        assert size == 2 * 4 * sum(SIZES)
        assert stats["collective_ungrouped"] == 0
        assert stats["collective_received"] == stats["collective_grpc"] == 0
        assert stats["groups"] == 1


@pytest.mark.parametrize(
    ("protocol", "environment"), [(STOCK, {}), (PLUGIN, RING)], ids=["stock", "set"]
)
def test_one_worker_without_groups_leaves_all_of_them_to_the_ring(
    tensorflow: Any, protocol: str, environment: dict[str, Any]
) -> None:
    cluster = Cluster({("worker", 0): PLUGIN, ("worker", 1): protocol}, {})
    try:
        cluster.start([("worker", 0)])
        cluster.start([("worker", 1)], **environment)
        cluster.wait_ready()
        check_sums(tensorflow, cluster, 2)
        stats = cluster.stats("worker")
        assert stats["collective_ungrouped"] == 2 * len(SIZES)
        assert stats["collective_grouped"] == stats["groups"] == 0
        assert (stats["collective_grpc"] > 0) == (protocol == STOCK)
    finally:
        cluster.close()


def one_sum(tf: Any, workers: int) -> list[Any]:
    """What each worker is to fetch."""
    fetches = []
    for task in range(workers):
        with tf.device(f"/job:worker/task:{task}/device:CPU:0"):
            fetches.append(
                tf.raw_ops.CollectiveReduce(
                    input=tf.fill([1000], float(task + 1)),
                    group_size=workers,
                    group_key=1,
                    instance_key=100,
                    merge_op="Add",
                    final_op="Id",
                    subdiv_offsets=[0],
                )
            )
    return fetches


def test_three_workers_over_tcp_and_a_step_that_is_cancelled(tensorflow: Any) -> None:
    """As with TensorFlow's own, such a step ends the collectives of all workers."""
    tf = tensorflow
    tasks = {("worker", task): PLUGIN for task in range(3)}
    named = running(tasks, host="[::1]", TENSORWIRE_FORBID="shm")  # by IPv6, too
    with named as cluster, tf.Graph().as_default():
        check_sums(tensorflow, cluster, 3)
        for task in range(3):
            stats = cluster.stats("worker", task)
            assert stats["collective_grouped"] == 2 * len(SIZES)
            assert stats["collective_ungrouped"] == stats["collective_grpc"] == 0
        fetches = one_sum(tf, 3)
        with session(tf, cluster.target("worker")) as run:
            # Long enough for the collective to begin: before, there is nothing that the others are
            # told of.
            with pytest.raises(tf.errors.DeadlineExceededError):
                run.run(fetches[1], options=together(tf, timeout_in_ms=5000))
            with pytest.raises(tf.errors.OpError, match="aborted"):
                run.run(fetches, options=together(tf))


def test_two_runs_of_a_step_are_told_apart(tensorflow: Any) -> None:
    """A session that gives a step up before a worker has heard of it uses its number again, and
    the worker has two runs of that step: here, of two sessions."""
    tf = tensorflow
    with running({("worker", task): PLUGIN for task in range(2)}) as cluster:
        check_sums(tensorflow, cluster, 2)
        graph = tf.Graph()
        with graph.as_default():
            fetches = one_sum(tf, 2)

        def outcome(task: int, fetch: Any) -> str:
            with graph.as_default(), session(tf, cluster.target("worker", task)) as run:
                try:
                    run.run(fetch, options=together(tf, timeout_in_ms=20_000))
                except tf.errors.OpError as error:
                    return str(error)
            return ""

        with ThreadPoolExecutor(1) as other:
            given_up = other.submit(outcome, 0, fetches[1])
            found = [outcome(1, fetches), given_up.result()]
    assert any("two runs of step" in each for each in found), found
    assert not any("Deadline Exceeded" in each for each in found), found


class Program:
    """A graph with collectives of each kind, of two workers."""

    REDUCTIONS = (("Add", "Id"), ("Add", "Div"), ("Mul", "Id"), ("Min", "Id"), ("Max", "Id"))
    TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")

    def __init__(self, tf: Any) -> None:
        self._tf = tf
        self._key = 1000
        self.fetches: dict[str, list[Any]] = {}
        for name in self.TYPES:
            for merge, final in self.REDUCTIONS:
                self._add(f"{name} {merge} {final}", partial(self._reduced, name, merge, final))
        self._add("broadcast", self._broadcast)
        self._add("gather", self._gathered)
        self._add("all to all", self._exchanged)

    def _add(self, name: str, make: Callable[[int, dict[str, Any]], Any]) -> None:
        self._key += 1
        keys = {"group_size": 2, "group_key": 1, "instance_key": self._key}
        self.fetches[name] = []
        for task in range(2):
            with self._tf.device(f"/job:worker/task:{task}/device:CPU:0"):
                self.fetches[name].append(make(task, keys))

    def _input(self, task: int, name: str, shape: tuple[int, ...] = (1001,)) -> Any:
        values = np.random.default_rng(task).normal(scale=50, size=shape)
        return self._tf.constant(values.astype(self._tf.as_dtype(name).as_numpy_dtype))

    def _reduced(self, name: str, merge: str, final: str, task: int, keys: dict[str, Any]) -> Any:
        return self._tf.raw_ops.CollectiveReduce(
            input=self._input(task, name),
            merge_op=merge,
            final_op=final,
            subdiv_offsets=[0],
            **keys,
        )

    def _broadcast(self, task: int, keys: dict[str, Any]) -> Any:
        if task == 1:
            return self._tf.raw_ops.CollectiveBcastSend(
                input=self._input(7, "float32"), shape=[1001], **keys
            )
        return self._tf.raw_ops.CollectiveBcastRecv(T=self._tf.float32, shape=[1001], **keys)

    def _gathered(self, task: int, keys: dict[str, Any]) -> Any:
        value = self._input(task, "float32", (7, 11))
        return self._tf.raw_ops.CollectiveGather(input=value, shape=[14, 11], **keys)

    def _exchanged(self, task: int, keys: dict[str, Any]) -> Any:
        return self._tf.raw_ops.CollectiveAllToAllV2(
            input=self._input(task, "float32", (2, 333)), ordering_token=[], **keys
        )

    def run(self, target: str) -> dict[str, list[Any]]:
        with session(self._tf, target) as run:
            found: dict[str, list[Any]] = run.run(self.fetches, options=together(self._tf))
            return found


def test_groups_give_two_workers_the_bits_of_the_ring(
    tensorflow: Any, ring: Cluster, group: Cluster
) -> None:
    with tensorflow.Graph().as_default():
        program = Program(tensorflow)
        before = [ring.stats("worker"), group.stats("worker")]
        expected, found = (program.run(each.target("worker")) for each in (ring, group))
    after = [ring.stats("worker"), group.stats("worker")]
    for name, values in expected.items():
        for one, other in zip(values, found[name], strict=True):
            assert one.tobytes() == other.tobytes(), name
    for counter, then, now in zip(
        ("collective_ungrouped", "collective_grouped"), before, after, strict=True
    ):
        assert now[counter] - then[counter] == len(program.fetches)


def leased(cluster: Cluster, task: int) -> int:
    return cluster.stats("worker", task)["arena_leased"]


def holds_at_most(most: int, cluster: Cluster, task: int) -> bool:
    return leased(cluster, task) <= most


@pytest.mark.parametrize(
    ("name", "counter"), [("ring", "collective_received"), ("group", "collective_grouped")]
)
def test_a_thousand_collectives_leave_nothing_behind(
    tensorflow: Any, request: pytest.FixtureRequest, name: str, counter: str
) -> None:
    cluster: Cluster = request.getfixturevalue(name)
    target = cluster.target("worker")
    run = partial(reduced, tensorflow, target, (50_000,), 2, first_key=2000)
    run(steps=100)
    # A group's own memory is leased for as long as it lives.
    held = [0, 0] if name == "ring" else [leased(cluster, task) for task in range(2)]
    before = [cluster.stats("worker", task) for task in range(2)]
    run(steps=1000)
    for task, then in enumerate(before):
        eventually(partial(holds_at_most, held[task], cluster, task), "leases come home")
        now = cluster.stats("worker", task)
        assert now["arena_used"] <= then["arena_used"] + 4 * 200_000
        assert now["arena_high_water"] <= then["arena_high_water"] + 4 * 200_000
        assert now["links"] == then["links"]
        assert now["groups"] == then["groups"]
        assert now[counter] >= then[counter] + 1000
