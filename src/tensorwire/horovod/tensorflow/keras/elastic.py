# SPDX-License-Identifier: Apache-2.0
"""``hvd.elastic`` for Keras: training that goes on when ranks are lost and when others come."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorwire.horovod.elastic import State
from tensorwire.horovod.tensorflow.elastic import TensorFlowKerasState, run

_Callback: Any = tf.keras.callbacks.Callback  # of Keras 3, or of tf_keras


class KerasState(TensorFlowKerasState):
    """A model that has been built, its optimizer, and plain attributes:
    ``KerasState(model, epoch=0, batch=0)``."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


class CommitStateCallback(_Callback):  # type: ignore[misc]
    """Commits every so many batches, and at the end of each epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self._state = state
        self._every = batches_per_commit
        self._since = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._since = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._since += 1
        if self._since >= self._every:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._commit()

    def _commit(self) -> None:
        self._since = 0
        self._state.commit()


class UpdateBatchStateCallback(_Callback):  # type: ignore[misc]
    """``state.batch`` is the batch of the epoch. One that begins in the middle of an epoch does the
    rest of its batches: give ``fit`` an endless data set, and ``steps_per_epoch``."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state
        self._steps: int | None = None
        self._start = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._steps = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._start = self._state.batch
        if self.params.get("steps"):
            self._steps = self._steps or self.params["steps"]
            self.params["steps"] = self._steps - self._start

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._state.batch = self._start + batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._state.batch = 0


class UpdateEpochStateCallback(_Callback):  # type: ignore[misc]
    """``state.epoch`` is the number of epochs that are done, over all calls of ``fit``."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state
        self._before = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._before = self._state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._state.epoch = self._before + epoch + 1


__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
