# SPDX-License-Identifier: Apache-2.0
"""A cluster that the chief connects to by hand: a variable on one task, read by another."""

from __future__ import annotations

import tensorflow as tf

SHAPE = (500, 100)

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type != "chief":
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    ).join()

tf.config.experimental_connect_to_cluster(resolver.cluster_spec(), job_name="chief", task_index=0)
with tf.device("/job:ps/task:0"):
    weights = tf.Variable(tf.ones(SHAPE))


@tf.function
def total() -> tf.Tensor:
    with tf.device("/job:ps/task:0/device:CPU:0"):
        doubled = weights * 2.0
    with tf.device("/job:worker/task:0/device:CPU:0"):
        return tf.reduce_sum(doubled)


for _ in range(5):
    assert float(total()) == 2.0 * SHAPE[0] * SHAPE[1]
print("as expected", flush=True)
