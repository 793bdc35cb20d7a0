# SPDX-License-Identifier: Apache-2.0
"""MultiWorkerMirroredStrategy: the workers add up their tensors by a ring."""

from __future__ import annotations

import tensorflow as tf

SIZE = 100_000

options = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.RING
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
own = float(strategy.cluster_resolver.task_id + 1)


@tf.function
def step() -> tf.Tensor:
    def replica() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.fill([SIZE], own))

    return strategy.run(replica)


for _ in range(5):
    found = step().numpy()
    assert found.min() == found.max() == 3.0, found
print("as expected", flush=True)
