# SPDX-License-Identifier: Apache-2.0
"""What workers of a ``MultiWorkerMirroredStrategy`` train: a network whose gradients take long to
add up, and next to no time to compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tensorwire.bench.harness.measure import WrongAnswerError
from tensorwire.bench.suites.tensorflow.cases import JOB, WORD, checksum

LAYERS: Final = 6
RATE: Final = 1e-3
AGREES: Final = 1e-3
"""How far an element may be from what it should be, as a part of the largest change of its
matrix."""


def width_of(size: int) -> int:
    """Of each of ``LAYERS`` square matrices that have about so many bytes together."""
    return max(8, round(math.sqrt(size / WORD / LAYERS) / 8) * 8)


def whole(size: int) -> int:
    """The bytes of the variables, and so of the gradients, that come next to ``size``."""
    return WORD * LAYERS * width_of(size) ** 2


def join(tf: Any, protocol: str, workers: Sequence[str], index: int) -> Any:
    """The strategy of the worker at that index, once all of them have come. TensorFlow has not run
    anything in this process so far.

    workers: their addresses; protocol: of their servers.
    """
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({JOB: workers}), task_type=JOB, task_id=index, rpc_layer=protocol
    )
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)


class Training:
    """Layers without biases, ReLU behind each, and one row of input, another one for each worker.

    tf: TensorFlow; place: of this worker, which chooses its input; size: bytes of the variables.
    All workers make it together, and so they ``step`` and ``check``.
    """

    def __init__(self, tf: Any, strategy: Any, place: int, size: int) -> None:
        self._tf = tf
        self._width = width_of(size)
        self._reduced = tf.distribute.ReduceOp.SUM
        with strategy.scope():
            shape = (self._width, self._width)
            self._matrices = [tf.Variable(tf.zeros(shape)) for _ in range(LAYERS)]
        own = self._row(place)
        self._restart = tf.function(lambda: strategy.run(self._assign))
        self._gradients = tf.function(lambda row: strategy.run(self._differentiate, (row,)))
        self.step = tf.function(lambda: strategy.run(self._descend, (own,)))
        """What is timed."""

    def check(self, workers: Sequence[int]) -> None:
        """Begins anew, makes one step, and compares each variable with that of a process which adds
        up the gradients of all those workers itself. Raises WrongAnswerError."""
        self._restart()
        found = [self._gradients(self._row(worker)) for worker in workers]
        before = [matrix.numpy() for matrix in self._matrices]
        self.step()
        for number, gradients in enumerate(zip(*found, strict=True)):
            change = -RATE * np.sum([gradient.numpy() for gradient in gradients], axis=0)
            after = self._matrices[number].numpy()
            wrong, most = (np.abs(each).max() for each in (after - before[number] - change, change))
            if not wrong <= AGREES * most:
                raise WrongAnswerError(
                    f"after a step matrix {number} is wrong by {wrong:.2g}, where its elements "
                    f"should have changed by at most {most:.2g}"
                )

    def checksum(self) -> int:
        """Of all variables: the same on all workers that have made the same steps."""
        return sum(int(checksum(self._tf, matrix)) for matrix in self._matrices)

    def _row(self, worker: int) -> Any:
        return self._tf.random.stateless_normal((1, self._width), (1, worker))

    def _assign(self) -> None:
        deviation = math.sqrt(2 / self._width)
        for number, matrix in enumerate(self._matrices):
            random = self._tf.random.stateless_normal(matrix.shape, (2, number))
            matrix.assign(deviation * random)

    def _differentiate(self, row: Any) -> list[Any]:
        tf = self._tf
        with tf.GradientTape() as tape:
            state = row
            for matrix in self._matrices:
                state = tf.nn.relu(state @ matrix)
            loss = tf.reduce_mean(tf.square(state))
        return list(tape.gradient(loss, self._matrices))

    def _descend(self, row: Any) -> None:
        context = self._tf.distribute.get_replica_context()
        everyones = context.all_reduce(self._reduced, self._differentiate(row))
        for matrix, gradient in zip(self._matrices, everyones, strict=True):
            matrix.assign_sub(RATE * gradient)
