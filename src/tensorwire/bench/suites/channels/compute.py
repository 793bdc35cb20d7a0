# SPDX-License-Identifier: Apache-2.0
"""The part of a training step that is no communication: products of matrices on one core, as the
layers of a network are, and gradients that are written."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from tensorwire.bench.harness.work import Array

WIDTH: Final = 256
_LIBRARIES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ONE_CORE: Final = dict.fromkeys(_LIBRARIES, "1")
"""For the environment of each rank: as many threads as ranks would want the same cores."""
_TRIES: Final = 5


class Layers:
    """products: of matrices in a step."""

    def __init__(self, products: int) -> None:
        random = np.random.default_rng(1)
        self._products = products
        self._weights = random.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        self._input = random.standard_normal((WIDTH, WIDTH)).astype(np.float32)

    def step(self, gradients: Sequence[Array], value: float) -> None:
        """Computes, and writes ``value`` into each element of the gradients, the last one first."""
        state = self._input
        for _ in range(self._products):
            state = np.tanh(state @ self._weights)
        for gradient in reversed(gradients):
            gradient.fill(value)


def products_on_one_core(seconds: float) -> int:
    """How many products take a rank about that long here: found out in a process that uses one core
    only, as ranks do. Raises subprocess.CalledProcessError where that process fails."""
    command = [sys.executable, "-m", __name__, str(seconds)]
    environment = {**os.environ, **ONE_CORE}
    return int(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def products_within(seconds: float) -> int:
    """How many products take about that long here, at least 1; 0 for 0 seconds."""
    if seconds == 0:
        return 0
    some = 16
    layers = Layers(some)
    took = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        layers.step([], 0.0)
        took.append(time.perf_counter() - began)
    return max(1, round(seconds / (min(took) / some)))


if __name__ == "__main__":
    print(products_within(float(sys.argv[1])))
