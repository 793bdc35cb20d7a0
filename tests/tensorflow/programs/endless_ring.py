# SPDX-License-Identifier: Apache-2.0
"""MultiWorkerMirroredStrategy without an end: says ``step`` after each one."""

from __future__ import annotations

import tensorflow as tf

SIZE = 3_000_000

options = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.RING
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


@tf.function
def step() -> tf.Tensor:
    def replica() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([SIZE]))

    return strategy.run(replica)


while True:
    found = step().numpy()
    assert found.min() == found.max() == 2.0, found
    print("step", flush=True)
