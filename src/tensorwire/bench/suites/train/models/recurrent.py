# SPDX-License-Identifier: Apache-2.0
"""One recurrent layer. An image is read as a sequence: each of its rows is one step."""

from __future__ import annotations

import tensorflow as tf
from tensorwire.bench.suites.train.models.layers import Network, Tensor, zeros

UNITS = 1024


def lstm(net: Network, x: Tensor) -> Tensor:
    """Long short-term memory (Hochreiter and Schmidhuber 1997); each gate has its own tensors."""
    steps = rows(x)
    gates = [Gate(net, steps) for _ in range(4)]
    state = memory = tf.zeros_like(gates[0].inputs[0])
    for step in range(len(gates[0].inputs)):
        write, forget, read, candidate = (gate(step, state) for gate in gates)
        memory = memory * tf.sigmoid(forget + 1.0) + tf.sigmoid(write) * tf.tanh(candidate)
        state = tf.sigmoid(read) * tf.tanh(memory)
    return state


def gru(net: Network, x: Tensor) -> Tensor:
    """Gated recurrent unit (Cho et al. 2014)."""
    steps = rows(x)
    update, reset, candidate = (Gate(net, steps) for _ in range(3))
    state = tf.zeros_like(update.inputs[0])
    for step in range(len(update.inputs)):
        keep = tf.sigmoid(update(step, state))
        proposed = tf.tanh(candidate(step, tf.sigmoid(reset(step, state)) * state))
        state = keep * state + (1.0 - keep) * proposed
    return state


class Gate:
    """What a gate adds up: from the input of a step, from the state, and a bias.

    inputs: the first and the third part, for each step: (batch, UNITS).
    """

    def __init__(self, net: Network, steps: Tensor) -> None:
        length, features = int(steps.shape[0]), int(steps.shape[-1])
        weights = net.parameter("gate/w", (features, UNITS), net.he(scale=1.0))
        self._recurrent = net.parameter("gate/u", (UNITS, UNITS), net.he(scale=1.0))
        bias = net.parameter("gate/b", (UNITS,), zeros())
        flat = tf.matmul(tf.reshape(steps, (-1, features)), weights) + bias
        self.inputs = tf.unstack(tf.reshape(flat, (length, -1, UNITS)), length)

    def __call__(self, step: int, state: Tensor) -> Tensor:
        return self.inputs[step] + tf.matmul(state, self._recurrent)


def rows(x: Tensor) -> Tensor:
    """(batch, height, width, channels) as (height, batch, width * channels)."""
    _, height, width, channels = (None if d is None else int(d) for d in x.shape)
    assert height is not None
    assert width is not None
    assert channels is not None
    return tf.transpose(tf.reshape(x, (-1, height, width * channels)), (1, 0, 2))
