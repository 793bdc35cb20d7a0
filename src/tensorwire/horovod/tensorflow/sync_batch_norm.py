# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorwire.horovod.asking import Sum
from tensorwire.horovod.process import size
from tensorwire.horovod.tensorflow.operations import allreduce

_BatchNormalization: Any = tf.keras.layers.BatchNormalization  # of Keras 3, or of tf_keras
_KERAS_2 = hasattr(_BatchNormalization, "_fused_can_be_used")


class SyncBatchNormalization(_BatchNormalization):  # type: ignore[misc]
    """Keras' ``BatchNormalization``, with the moments of all ranks' batches while it is trained.
    Their sizes may differ, and how much of each a mask leaves."""

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization has no fused form")
        if _KERAS_2:
            kwargs["fused"] = False
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, *how: Any, **more: Any) -> Any:
        if size() == 1:
            return super()._moments(inputs, *how, **more)
        if _KERAS_2:  # (inputs, axes, keep_dims=, mask=)
            axes, mask = how[0], more.get("mask")
            more["mask"] = _not_empty(mask)
        else:
            axes, (mask,) = self._reduction_axes, how
            how = (_not_empty(mask),)
        mean, variance = super()._moments(inputs, *how, **more)
        # Keras drops axes of one element where there is a mask, which other ranks may not have.
        mine, spread = tf.reshape(mean, [-1]), tf.reshape(variance, [-1])
        if mask is None:
            count = tf.cast(tf.size(inputs) / tf.size(mean), mean.dtype) * tf.ones_like(mine)
        else:
            left = tf.cast(tf.cast(mask, tf.bool), mean.dtype)[..., tf.newaxis]
            left = tf.broadcast_to(left, tf.shape(inputs))
            count = tf.reshape(tf.reduce_sum(left, axes), [-1])
        counted = allreduce(tf.stack([count * mine, count]), op=Sum, name=f"{self.name}.mean")
        total = counted[1]  # 0 where the masks of all ranks leave nothing
        of_all = tf.math.divide_no_nan(counted[0], total)
        squares = count * (spread + tf.square(mine - of_all))
        squares = allreduce(squares, op=Sum, name=f"{self.name}.variance")
        both = (of_all, tf.math.divide_no_nan(squares, total))
        return tuple(tf.reshape(each, tf.shape(mean)) for each in both)


def _not_empty(mask: Any) -> Any:
    """Instead of an empty one a full one: the moments count nothing then, but those of no positions
    are no numbers with Keras 2, and gradients would be none either."""
    if mask is None:
        return None
    mask = tf.cast(mask, tf.bool)
    return tf.logical_or(mask, tf.logical_not(tf.reduce_any(mask)))
