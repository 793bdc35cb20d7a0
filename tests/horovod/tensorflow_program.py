# SPDX-License-Identifier: Apache-2.0
"""What ranks of the tests with TensorFlow run. Each prints one line of JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

import tensorflow as tf
import tensorwire.horovod.keras as hvd_keras
import tensorwire.horovod.tensorflow as hvd


def moved(mine: Any) -> list[Any]:
    return [
        hvd.allreduce(mine),
        hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16),
        hvd.allgather(mine),
        hvd.broadcast(mine, 1),
        hvd.reducescatter(mine, op=hvd.Sum),
        *hvd.alltoall(mine, splits=[1, 1]),
        hvd.allreduce(tf.reduce_sum(mine)),
    ]


def of_slices() -> Any:
    found = hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]), [hvd.rank()], [2, 2]), op=hvd.Sum)
    return tf.convert_to_tensor(found)


def trained_by_tape() -> list[float]:
    tf.random.set_seed(hvd.rank())
    weights = tf.Variable(tf.random.normal([4, 2]))
    hvd.broadcast_variables([weights], root_rank=0)
    optimizer = tf.keras.optimizers.SGD(0.1)
    start = weights.numpy()
    batches = np.random.default_rng(7).random((2, 8, 4), np.float32)

    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch @ weights))
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply_gradients(zip(tape.gradient(loss, [weights]), [weights], strict=True))

    step(tf.constant(batches[hvd.rank()]))
    with tf.GradientTape() as tape:
        both = tf.Variable(start)
        loss = tf.reduce_mean(tf.square(batches.reshape(16, 4) @ both))
    wanted = start - 0.1 * tape.gradient(loss, both).numpy()
    return [float(np.abs(weights.numpy() - wanted).max()), *weights.numpy().ravel().tolist()]


def trained_by_keras() -> list[Any]:
    tf.keras.utils.set_random_seed(hvd.rank())
    model = tf.keras.Sequential([tf.keras.layers.Dense(3), tf.keras.layers.Dense(1)])
    optimizer = hvd_keras.DistributedOptimizer(tf.keras.optimizers.Adam(0.01))
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    generator = np.random.default_rng(hvd.rank())
    history = model.fit(
        generator.random((32, 4)),
        generator.random((32, 1)),
        epochs=2,
        batch_size=16,
        verbose=0,
        callbacks=[
            hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd_keras.callbacks.MetricAverageCallback(),
        ],
    )
    return [*(each.numpy().tolist() for each in model.variables), *history.history["loss"]]


if __name__ == "__main__":
    hvd.init()
    rank = hvd.rank()
    ours = tf.constant([rank + 1.0, rank + 2.0])
    with tf.GradientTape() as outer:
        outer.watch(ours)
        total = tf.reduce_sum(hvd.allreduce(ours, op=hvd.Sum))
    result = {
        "eager": [each.numpy().tolist() for each in moved(ours)],
        "function": [each.numpy().tolist() for each in tf.function(moved)(ours)],
        "gradient": outer.gradient(total, ours).numpy().tolist(),
        "slices": of_slices().numpy().tolist(),
        "objects": hvd.allgather_object({"rank": rank}),
        "object": hvd.broadcast_object([rank], 1),
        "tape": trained_by_tape(),
        "keras": trained_by_keras(),
    }
    print(json.dumps(result))
