# SPDX-License-Identifier: Apache-2.0
"""Keras's fit under ParameterServerStrategy."""

from __future__ import annotations

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("ps", "worker"):
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    ).join()

import tf_keras  # noqa: E402 - the Keras that knows parameter servers

strategy = tf.distribute.ParameterServerStrategy(resolver)


def data(_context: tf.distribute.InputContext) -> tf.data.Dataset:
    features = tf.random.stateless_normal((256, 64), (1, 2))
    pairs = tf.data.Dataset.from_tensor_slices((features, tf.reduce_sum(features, 1)))
    return pairs.repeat().batch(32)


with strategy.scope():
    model = tf_keras.Sequential([tf_keras.layers.Dense(128), tf_keras.layers.Dense(1)])
    model.compile("sgd", "mse")
history = model.fit(
    tf_keras.utils.experimental.DatasetCreator(data), epochs=3, steps_per_epoch=10, verbose=0
)
losses = history.history["loss"]
assert losses[-1] < losses[0], losses
print("as expected", flush=True)
