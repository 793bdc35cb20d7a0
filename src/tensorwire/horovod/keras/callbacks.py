# SPDX-License-Identifier: Apache-2.0
"""What a Keras model does while it is trained by several ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorflow as tf
from tensorwire.horovod.tensorflow.operations import allreduce, broadcast_variables

_Callback: Any = tf.keras.callbacks.Callback  # of Keras 3, or of tf_keras


class BroadcastGlobalVariablesCallback(_Callback):  # type: ignore[misc]
    """After the first batch, when the optimizer has its variables, all ranks have the root's."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root = root_rank
        self._done = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._done:
            broadcast_variables(self.model.variables, self._root)
            broadcast_variables(self.model.optimizer.variables, self._root)
            self._done = True


class MetricAverageCallback(_Callback):  # type: ignore[misc]
    """At the end of an epoch, metrics are the averages over all ranks. Callbacks after it see
    them."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for name in sorted(logs or {}):
            assert logs is not None
            value = np.float64(logs[name])
            logs[name] = float(allreduce(value, name=f"metric.{name}"))
