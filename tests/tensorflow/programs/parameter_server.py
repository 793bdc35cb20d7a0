# SPDX-License-Identifier: Apache-2.0
"""ParameterServerStrategy, driven by a ClusterCoordinator on the chief."""

from __future__ import annotations

import tensorflow as tf

STEPS = 12
SHAPE = (500, 100)

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("ps", "worker"):
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    ).join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.zeros(SHAPE))


@tf.function
def step() -> tf.Tensor:
    def replica() -> tf.Tensor:
        total = tf.reduce_sum(weights)
        weights.assign_add(tf.ones(SHAPE))
        return total

    return strategy.run(replica)


for _ in range(STEPS):
    coordinator.schedule(step)
coordinator.join()
assert weights.numpy().min() == weights.numpy().max() == STEPS
print("as expected", flush=True)
