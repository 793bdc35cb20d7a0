# SPDX-License-Identifier: Apache-2.0
"""Between-graph replication with TensorFlow 1's servers and sessions: each worker trains a variable
of its own on the parameter server."""

from __future__ import annotations

import argparse

import numpy as np

import tensorflow as tf

v1 = tf.compat.v1
STEPS = 10
SHAPE = (500, 100)

parser = argparse.ArgumentParser()
for name in ("job_name", "ps_hosts", "worker_hosts", "server_protocol"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--task_index", type=int, required=True)
flags = parser.parse_args()

v1.disable_eager_execution()
cluster = tf.train.ClusterSpec(
    {"ps": flags.ps_hosts.split(","), "worker": flags.worker_hosts.split(",")}
)
server = v1.train.Server(cluster, flags.job_name, flags.task_index, protocol=flags.server_protocol)
if flags.job_name == "ps":
    server.join()

worker = f"/job:worker/task:{flags.task_index}"
with v1.device(v1.train.replica_device_setter(worker_device=worker, cluster=cluster)):
    start = np.linspace(-1, 1, SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)
    weights = v1.get_variable(f"weights{flags.task_index}", initializer=start)
    data = tf.constant(np.linspace(0, 1, SHAPE[0], dtype=np.float32)[None, :])
    loss = tf.reduce_mean(tf.square(tf.matmul(data, weights) - 1.0))
    train = v1.train.GradientDescentOptimizer(0.01).minimize(loss)
# Without filters a session waits for all tasks, of which one may have finished already.
only = v1.ConfigProto(device_filters=["/job:ps", worker])
with v1.Session(server.target, config=only) as session:
    session.run(weights.initializer)
    losses = [session.run([loss, train])[0] for _ in range(STEPS)]
print("loss", " ".join(float(loss).hex() for loss in losses), flush=True)
