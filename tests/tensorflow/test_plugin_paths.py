# SPDX-License-Identifier: Apache-2.0
"""Which way tensors go between real servers, and that they arrive as they were sent."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from tests.tensorflow.conftest import PAIR, PLUGIN, PS, STOCK, WORKER, Cluster, running

from tensorwire.transports import why_not

pytestmark = pytest.mark.timeout(300)

KINDS = (
    np.float32,
    np.float64,
    np.float16,
    np.int8,
    np.int32,
    np.int64,
    np.uint16,
    np.bool_,
    np.complex64,
)
SHAPES = ((), (0, 3), (1,), (7, 5), (3, 2731), (64, 1024), (3, 1000, 401))


def session(tf: Any, target: str) -> Any:
    options = tf.compat.v1.GraphOptions(
        optimizer_options=tf.compat.v1.OptimizerOptions(opt_level=-1)
    )
    config = tf.compat.v1.ConfigProto(graph_options=options, operation_timeout_in_ms=60_000)
    return tf.compat.v1.Session(target, config=config)


def sent_there_and_back(tf: Any, cluster: Cluster, values: list[Any]) -> list[Any]:
    """Each value goes from the worker to the ps, is used there, and comes back."""
    with tf.Graph().as_default():
        feeds = [tf.compat.v1.placeholder(value.dtype, value.shape) for value in values]
        fetches = []
        for feed in feeds:
            with tf.device(WORKER):
                there = tf.identity(feed)
            with tf.device(PS):
                back = tf.concat([there, there], 0) if feed.shape.rank else tf.identity(there)
            with tf.device(WORKER):
                fetches.append(tf.identity(back))
        with session(tf, cluster.target("worker")) as run:
            got: list[Any] = run.run(fetches, dict(zip(feeds, values, strict=True)))
            return got


def values_of_all_kinds(seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [
        (random.standard_normal(shape) * 100).astype(kind) for kind in KINDS for shape in SHAPES
    ]


def check_there_and_back(tf: Any, cluster: Cluster) -> None:
    values = values_of_all_kinds(1)
    for value, got in zip(values, sent_there_and_back(tf, cluster, values), strict=True):
        expected = np.concatenate([value, value]) if value.ndim else value
        assert got.dtype == value.dtype
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("arena", ["auto", "off"])
def test_shared_memory(tensorflow: Any, arena: str) -> None:
    with running(PAIR, TENSORWIRE_TF_ARENA=arena) as cluster:
        check_there_and_back(tensorflow, cluster)
        stats = cluster.stats("ps")
        assert stats["received_in_place"] > 0
        assert stats["received_shm"] > 0
        assert stats["received_tcp"] == stats["received_grpc"] == 0
        assert stats["served_small"] > 0  # either way
        assert stats["served_pushed"] == 0
        assert (stats["served_lent"] > 0, stats["served_copied"] > 0) == (
            (True, False) if arena == "auto" else (False, True)
        )


@pytest.mark.parametrize(
    "transport",
    [
        "tcp",
        pytest.param(
            "verbs",
            marks=pytest.mark.skipif(why_not("verbs") is not None, reason="no RDMA device here"),
        ),
    ],
)
def test_between_hosts(tensorflow: Any, transport: str) -> None:
    with running(PAIR, TENSORWIRE_TRANSPORT=transport) as cluster:
        check_there_and_back(tensorflow, cluster)
        stats = cluster.stats("ps")
        assert stats[f"received_{transport}_bytes"] > 1 << 20
        ways = ("in_place", "shm", "verbs", "tcp", "grpc")
        assert {way for way in ways if stats[f"received_{way}"]} == {transport}
        # A socket takes copies, also of what lies in the arena.
        assert (stats["served_pushed_bytes"] > 1 << 20) == (transport == "tcp")
        assert (stats["served_lent_bytes"] > 1 << 20) == (transport != "tcp")
        assert stats["served_small"] > 0
        assert stats["served_copied"] == 0


def test_a_cluster_that_is_named_by_ipv6(tensorflow: Any) -> None:
    with running(PAIR, host="[::1]", TENSORWIRE_TRANSPORT="tcp") as cluster:
        check_there_and_back(tensorflow, cluster)
        stats = cluster.stats("ps")
        assert stats["received_tcp"] > stats["received_grpc"] == 0


def test_a_data_port_that_nobody_reaches(tensorflow: Any) -> None:
    with running(PAIR, TENSORWIRE_FORBID="shm") as cluster:
        assert cluster.processes["worker", 0].ask("drop") == 1
        check_there_and_back(tensorflow, cluster)
        stats = cluster.stats("ps")
        assert stats["received_grpc"] == stats["grpc_because_link"] > 0
        assert stats["grpc_because_peer"] == stats["links"] == 0
        assert cluster.stats("worker")["received_tcp"] > 0


@pytest.mark.parametrize("stock", ["ps", "worker"])
def test_a_stock_peer_is_met_by_grpc(tensorflow: Any, stock: str) -> None:
    tasks = {**PAIR, (stock, 0): STOCK}
    other = "worker" if stock == "ps" else "ps"
    with running(tasks) as cluster:
        check_there_and_back(tensorflow, cluster)
        stats = cluster.stats(other)
        assert stats["received_grpc"] == stats["grpc_because_peer"] > 0
        assert stats["served_grpc"] > 0
        assert stats["links"] == 0


def test_three_workers_of_which_one_is_stock(tensorflow: Any) -> None:
    tf = tensorflow
    tasks = {("worker", 0): PLUGIN, ("worker", 1): PLUGIN, ("worker", 2): STOCK}
    with running(tasks) as cluster, tf.Graph().as_default():
        parts = []
        for task in range(3):
            with tf.device(f"/job:worker/task:{task}"):
                parts.append(tf.random.stateless_uniform([500, 500], [task, 7], 0, 1000, tf.int32))
        sums = []
        for task in range(3):
            with tf.device(f"/job:worker/task:{task}"):
                sums.append(tf.reduce_sum(tf.add_n(parts)))
        with session(tf, cluster.target("worker")) as run:
            got = run.run(sums)
        assert got[0] == got[1] == got[2]
        stats = cluster.stats("worker")
        assert stats["received_in_place"] > 0
        assert stats["received_grpc"] > 0


def test_strings_variants_and_dead_tensors(tensorflow: Any) -> None:
    tf = tensorflow
    with running(PAIR) as cluster, tf.Graph().as_default():
        with tf.device(PS):
            text = tf.compat.v1.placeholder_with_default(["a", "", "ü" * 5000], [3])
            taken = tf.compat.v1.placeholder(tf.bool, [])
            yes, no = tf.raw_ops.Switch(data=tf.ones([40000]), pred=taken)[::-1]
            items = tf.raw_ops.TensorListFromTensor(
                tensor=tf.ones([4, 20000]), element_shape=tf.constant([20000])
            )
        with tf.device(WORKER):
            lengths = tf.strings.length(text)
            merged = tf.raw_ops.Merge(inputs=[tf.identity(yes) * 2.0, tf.identity(no) * 3.0])[0]
            stacked = tf.raw_ops.TensorListStack(
                input_handle=items, element_shape=tf.constant([20000]), element_dtype=tf.float32
            )
            total = tf.reduce_sum(stacked)
        with session(tf, cluster.target("worker")) as run:
            for way, factor in ((True, 2.0), (False, 3.0)):
                got = run.run([lengths, merged, total], {taken: way})
                assert got[0].tolist() == [1, 0, 10000]
                assert (got[1] == factor).all()
                assert got[2] == 80000.0
        assert cluster.stats("ps")["served_serialized"] == 4
        assert cluster.stats("worker")["received_grpc"] == 0


def test_a_required_transport_is_no_wish(tensorflow: Any) -> None:
    tasks = {**PAIR, ("ps", 0): STOCK}
    with (
        running(tasks, TENSORWIRE_TRANSPORT="tcp") as cluster,
        pytest.raises(tensorflow.errors.UnavailableError, match="runs without tensorwire"),
    ):
        check_there_and_back(tensorflow, cluster)


def test_two_servers_in_one_process(tensorflow: Any) -> None:
    cluster = Cluster(PAIR, {})
    try:
        cluster.start(list(PAIR))
        cluster.wait_ready()
        check_there_and_back(tensorflow, cluster)
        stats = cluster.stats("ps")
        assert stats["received_in_place"] > 0
        assert stats["links"] == 2
    finally:
        cluster.close()


def test_loaded_late(tensorflow: Any) -> None:
    cluster = Cluster(PAIR, {})
    try:
        for task in PAIR:
            cluster.start([task], late=True)
        cluster.wait_ready()
        check_there_and_back(tensorflow, cluster)
        stats = cluster.stats("ps")
        assert stats["served_lent_bytes"] > stats["served_copied_bytes"]
    finally:
        cluster.close()


def test_two_clusters_that_use_the_same_names(tensorflow: Any) -> None:
    with running(PAIR) as one, running(PAIR) as other:
        for cluster in (one, other):
            check_there_and_back(tensorflow, cluster)
            assert cluster.stats("ps")["received_in_place"] > 0


def test_what_is_required_cannot_be_forbidden(tensorflow: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import tensorwire.tensorflow as t; t.enable()"],
        env={**os.environ, "TENSORWIRE_TRANSPORT": "shm", "TENSORWIRE_FORBID": "tcp,shm"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert (
        "TENSORWIRE_TRANSPORT=shm and TENSORWIRE_FORBID=shm,tcp leave no transport" in done.stderr
    )


@pytest.mark.skipif(why_not("verbs") is None, reason="this host has an RDMA device")
def test_rdma_that_is_required_and_not_there(tensorflow: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import tensorwire.tensorflow as t; t.enable()"],
        env={**os.environ, "TENSORWIRE_TRANSPORT": "verbs"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert f"TENSORWIRE_TRANSPORT=verbs requires what cannot be had: {why_not('verbs')}" in (
        done.stderr
    )
