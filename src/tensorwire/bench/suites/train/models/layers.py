# SPDX-License-Identifier: Apache-2.0
"""The layers that the models are made of. Activations are float32, batch first, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

Tensor = Any

BATCH_NORM_DECAY = 0.9
BATCH_NORM_EPSILON = 1e-3


class Statistic(Protocol):
    """A value that training keeps beside the parameters and no gradient reaches."""

    def read(self) -> Tensor: ...
    def move_towards(self, value: Tensor, decay: float) -> None: ...


class Parameters(Protocol):
    """Where a network gets its parameters from: the tensors to compute this step with."""

    def parameter(self, name: str, shape: Sequence[int], initializer: Any) -> Tensor: ...
    def statistic(self, name: str, shape: Sequence[int], initializer: Any) -> Statistic: ...


class Network:
    """Layers on top of ``parameters``, which names each by its place in the order of creation.

    training: batch statistics and dropout, else moving averages and none.
    """

    def __init__(self, parameters: Parameters, *, training: bool, seed: int) -> None:
        self._parameters = parameters
        self._training = training
        self._seed = seed
        self._count = 0
        self._statistics = 0

    def parameter(self, kind: str, shape: Sequence[int], initializer: Any) -> Tensor:
        name = f"{self._count:03}/{kind}"
        self._count += 1
        return self._parameters.parameter(name, shape, initializer)

    def conv(
        self,
        x: Tensor,
        filters: int,
        size: int | tuple[int, int],
        stride: int = 1,
        padding: str = "SAME",
        norm: str = "bias",
        relu: bool = True,
    ) -> Tensor:
        """norm: ``bias``, ``beta`` (batch normalisation without a scale) or ``gamma`` (with)."""
        height, width = (size, size) if isinstance(size, int) else size
        shape = (height, width, int(x.shape[-1]), filters)
        x = tf.nn.conv2d(x, self.parameter("conv/kernel", shape, self.he()), stride, padding)
        if norm == "bias":
            x = tf.nn.bias_add(x, self.parameter("bias", (filters,), zeros()))
        else:
            x = self.batch_norm(x, scale=norm == "gamma")
        return tf.nn.relu(x) if relu else x

    def batch_norm(self, x: Tensor, scale: bool) -> Tensor:
        shape = (int(x.shape[-1]),)
        beta = self.parameter("beta", shape, zeros())
        gamma = self.parameter("gamma", shape, ones()) if scale else tf.ones(shape)
        mean = self._statistic("moving_mean", shape, zeros())
        variance = self._statistic("moving_variance", shape, ones())
        if not self._training:
            y, _, _ = tf.compat.v1.nn.fused_batch_norm(
                x, gamma, beta, mean.read(), variance.read(), BATCH_NORM_EPSILON, is_training=False
            )
            return y
        y, batch_mean, batch_variance = tf.compat.v1.nn.fused_batch_norm(
            x, gamma, beta, epsilon=BATCH_NORM_EPSILON
        )
        mean.move_towards(batch_mean, BATCH_NORM_DECAY)
        variance.move_towards(batch_variance, BATCH_NORM_DECAY)
        return y

    def dense(self, x: Tensor, units: int, relu: bool = True) -> Tensor:
        """x: flattened to (batch, features) first."""
        if len(x.shape) > 2:
            x = tf.reshape(x, (-1, int(tf.TensorShape(x.shape[1:]).num_elements())))
        initializer = self.he() if relu else self.he(scale=1.0)
        weights = self.parameter("fc/w", (int(x.shape[-1]), units), initializer)
        x = tf.matmul(x, weights) + self.parameter("fc/b", (units,), zeros())
        return tf.nn.relu(x) if relu else x

    def dropout(self, x: Tensor, keep: float = 0.5) -> Tensor:
        return tf.nn.dropout(x, rate=1 - keep, seed=self._seed) if self._training else x

    def he(self, scale: float = 2.0) -> Any:
        """Variance scaling by the number of inputs (He et al. 2015)."""
        seed = self._seed + self._count
        return tf.compat.v1.initializers.variance_scaling(scale=scale, seed=seed)

    def _statistic(self, kind: str, shape: Sequence[int], initializer: Any) -> Statistic:
        name = f"statistics/{self._statistics:03}/{kind}"
        self._statistics += 1
        return self._parameters.statistic(name, shape, initializer)


def max_pool(x: Tensor, size: int, stride: int, padding: str = "VALID") -> Tensor:
    return tf.nn.max_pool2d(x, size, stride, padding)


def average_pool(x: Tensor, size: int, stride: int, padding: str = "VALID") -> Tensor:
    return tf.nn.avg_pool2d(x, size, stride, padding)


def spatial_mean(x: Tensor) -> Tensor:
    return tf.reduce_mean(x, (1, 2))


def join(branches: Sequence[Tensor]) -> Tensor:
    return tf.concat(branches, -1)


def zeros() -> Any:
    return tf.compat.v1.initializers.zeros()


def ones() -> Any:
    return tf.compat.v1.initializers.ones()
