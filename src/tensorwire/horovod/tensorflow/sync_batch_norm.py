# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorwire.horovod.asking import Sum
from tensorwire.horovod.process import size
from tensorwire.horovod.tensorflow.operations import allreduce

_BatchNormalization: Any = tf.keras.layers.BatchNormalization  # of Keras 3, or of tf_keras


class SyncBatchNormalization(_BatchNormalization):  # type: ignore[misc]
    """Keras' ``BatchNormalization``, with the moments of all ranks' batches while it is trained.
    Their sizes may differ."""

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization has no fused form")
        if hasattr(_BatchNormalization, "_fused_can_be_used"):  # Keras 2
            kwargs["fused"] = False
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, *how: Any, **more: Any) -> Any:
        mean, variance = super()._moments(inputs, *how, **more)
        if size() == 1:
            return mean, variance
        count = tf.cast(tf.size(inputs) / tf.size(mean), mean.dtype)
        given = tf.stack([count * mean, count * tf.ones_like(mean)])
        counted = allreduce(given, op=Sum, name=f"{self.name}.mean")
        total = counted[1]
        of_all = counted[0] / total
        squares = count * (variance + tf.square(mean - of_all))
        return of_all, allreduce(squares, op=Sum, name=f"{self.name}.variance") / total
