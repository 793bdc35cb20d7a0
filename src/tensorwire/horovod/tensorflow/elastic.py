# SPDX-License-Identifier: Apache-2.0
"""``hvd.elastic`` for TensorFlow 2: training that goes on when ranks are lost and others come."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import tensorflow as tf
from tensorwire.horovod import elastic
from tensorwire.horovod.elastic import ObjectState, State
from tensorwire.horovod.errors import HorovodInternalError
from tensorwire.horovod.process import rank
from tensorwire.horovod.tensorflow.operations import broadcast_object, broadcast_variables

R = TypeVar("R")

_OURS: Final = re.compile(rf"{HorovodInternalError.__name__}: (.*)")
"""In the text of an error of TensorFlow's, which is many tracebacks."""


def run(function: Callable[..., R]) -> Callable[..., R]:
    """As ``tensorwire.horovod.elastic.run``; TensorFlow's functions raise errors of its own."""

    @functools.wraps(function)
    def translated(*args: Any, **kwargs: Any) -> R:
        try:
            return function(*args, **kwargs)
        except tf.errors.OpError as error:
            ours = _OURS.search(str(error))
            if ours is None:
                raise
            raise HorovodInternalError(ours[1]) from error

    return elastic.run(translated)


class _Variables(ObjectState):
    """Variables and plain attributes."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(broadcast_object, rank, **kwargs)
        self._kept: list[Any] = []
        self._keep()

    def _variables(self) -> list[Any]:
        raise NotImplementedError

    def save(self) -> None:
        self._keep()
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self._variables(), self._kept, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        broadcast_variables(self._variables(), 0)
        self._keep()
        super().sync()

    def _keep(self) -> None:
        self._kept = [variable.numpy() for variable in self._variables()]


class TensorFlowState(_Variables):
    """``variables``, all of them, and plain attributes: ``TensorFlowState(variables, batch=0)``."""

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        if session is not None or variables is None:
            raise ValueError("TensorFlowState takes variables, and no session of TensorFlow 1")
        self.variables = variables
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        return list(self.variables)


class TensorFlowKerasState(_Variables):
    """A model that has been built, its optimizer, and plain attributes:
    ``TensorFlowKerasState(model, optimizer, epoch=0, batch=0)``."""

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if not model.built:
            raise ValueError("the model has no variables yet: model.build(input_shape) first")
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is not None and hasattr(self.optimizer, "build"):
            self.optimizer.build(model.trainable_variables)
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        found = self.optimizer.variables if self.optimizer is not None else []
        return [*self.model.variables, *(found() if callable(found) else found)]


__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]
