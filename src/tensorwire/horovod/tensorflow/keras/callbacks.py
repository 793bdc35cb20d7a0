# SPDX-License-Identifier: Apache-2.0
"""What a Keras model does while it is trained by several ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

import tensorflow as tf
from tensorwire.horovod.process import size
from tensorwire.horovod.tensorflow.operations import allreduce, broadcast_variables

_Callback: Any = tf.keras.callbacks.Callback  # of Keras 3, or of tf_keras
_ModelCheckpoint: Any = tf.keras.callbacks.ModelCheckpoint


class BroadcastGlobalVariablesCallback(_Callback):  # type: ignore[misc]
    """After the first batch, when the optimizer has its variables, all ranks have the root's."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        if local_variables:
            raise NotImplementedError("all variables are broadcast, also those of local_variables")
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

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for name in sorted(logs or {}):
            assert logs is not None
            value = np.float64(logs[name])
            logs[name] = float(allreduce(value, name=f"metric.{name}"))


class LearningRateScheduleCallback(_Callback):  # type: ignore[misc]
    """From ``start_epoch`` until ``end_epoch`` the learning rate is ``initial_lr`` times
    ``multiplier``: a function of the epoch, or a number, to the power of the epochs since
    ``start_epoch``. With ``staircase`` it changes once an epoch; otherwise with each batch, where
    the epoch has a fraction, of ``steps_per_epoch`` batches. ``momentum_correction`` has no effect:
    Keras compiles an optimizer's momentum as a constant."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr is needed")
        self._initial = initial_lr
        self._multiplier = multiplier
        self._start = start_epoch
        self._end = end_epoch
        self._staircase = staircase
        self._steps = steps_per_epoch
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._epoch < self._start or (self._end is not None and self._epoch >= self._end):
            return
        if not self._staircase:
            self._adjust(self._epoch + batch / self._steps_of_an_epoch())
        elif batch == 0:
            self._adjust(self._epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = float(np.asarray(self.model.optimizer.learning_rate))

    def _steps_of_an_epoch(self) -> int:
        steps = self._steps or self.params.get("steps")
        if not steps:
            raise ValueError("Keras does not know the number of batches: give steps_per_epoch")
        return int(steps)

    def _adjust(self, epoch: float) -> None:
        if callable(self._multiplier):
            factor = self._multiplier(epoch)
        else:
            factor = self._multiplier ** (epoch - self._start)
        self.model.optimizer.learning_rate = self._initial * factor


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Over ``warmup_epochs`` the learning rate grows from ``initial_lr`` divided by the number of
    ranks to ``initial_lr``, batch by batch (Goyal et al., Accurate, Large Minibatch SGD, 2017,
    section 2.2). ``initial_lr`` is that of all ranks. Arguments as of
    :class:`LearningRateScheduleCallback`."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The last batch has the whole rate.
            done = min((epoch + 1.0 / self._steps_of_an_epoch()) / warmup_epochs, 1.0)
            return float((1.0 + done * (size() - 1)) / size())

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self._last = warmup_epochs - 1
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch == self._last and self._verbose:
            rate = float(np.asarray(self.model.optimizer.learning_rate))
            print(f"\nEpoch {epoch + 1}: the learning rate has grown to {rate:g}.")


class BestModelCheckpoint(_ModelCheckpoint):  # type: ignore[misc]
    """Keras's ``ModelCheckpoint`` that saves the whole model whenever ``monitor`` is better than
    ever before. Where to is its attribute ``filepath``, which is set before the training; other
    arguments are those of Keras. One rank has this callback: all would write the same file."""

    filepath: str | os.PathLike[str] | None

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(
            "not_set.keras",  # Keras wants a name that ends like that of a model
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=False,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        if self.filepath is None:
            raise ValueError(
                "BestModelCheckpoint has no file to save the model in: set its filepath, such as "
                "'best.keras', before the training"
            )
        self.filepath = os.fspath(self.filepath)
        super().on_train_begin(logs)


__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
