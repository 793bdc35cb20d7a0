# SPDX-License-Identifier: Apache-2.0
"""One task of two clusters at once, for a process that is forked (tests/forked.py).

The workers train the same model twice, over stock gRPC and over tensorwire, and tell the losses bit
by bit. The parameter server tells what went which way. One thread, so that sums are added in one
order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

import tensorflow as tf
import tensorwire.tensorflow as tt

v1 = tf.compat.v1
STEPS = 6
INPUTS, HIDDEN = 784, 64  # 200 KB of weights: read by RDMA; the biases are sent eagerly
Cluster = dict[str, list[str]]


def main(order: tuple[Mapping[str, Cluster], str, int]) -> None:
    """Prints the losses by protocol and, for a line of input, ``tensorwire``'s counters."""
    clusters, job, index = order
    tt.enable()
    v1.disable_eager_execution()
    trained = {name: losses(name, cluster, job, index) for name, cluster in clusters.items()}
    print(json.dumps(trained), flush=True)
    sys.stdin.readline()
    print(json.dumps(tt.stats()), flush=True)


def losses(protocol: str, addresses: Cluster, job: str, index: int) -> list[str]:
    """Starts this task's server; a worker trains variables of its own on the parameter server."""
    cluster = tf.train.ClusterSpec(addresses)
    config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    server = v1.train.Server(cluster, job, index, protocol=protocol, config=config)
    if job == "ps":
        return []
    worker = f"/job:worker/task:{index}"
    config.device_filters.extend(["/job:ps", worker])  # the other worker may have finished
    random = np.random.default_rng(index)
    with v1.Graph().as_default():
        with v1.device(v1.train.replica_device_setter(worker_device=worker, cluster=cluster)):

            def weights(name: str, *shape: int) -> Any:
                start = random.standard_normal(shape).astype(np.float32) / 20
                return v1.get_variable(f"{name}{index}", initializer=start)

            data = tf.constant(random.standard_normal((16, INPUTS)).astype(np.float32))
            labels = tf.constant(random.integers(0, 10, 16))
            hidden = tf.nn.relu(data @ weights("w0", INPUTS, HIDDEN) + weights("b0", HIDDEN))
            scores = hidden @ weights("w1", HIDDEN, 10) + weights("b1", 10)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
            )
            train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        with v1.Session(server.target, config=config) as session:
            session.run(v1.global_variables_initializer())
            return [float(session.run([loss, train])[0]).hex() for _ in range(STEPS)]
