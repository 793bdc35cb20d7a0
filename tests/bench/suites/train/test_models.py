# SPDX-License-Identifier: Apache-2.0
"""Every tensor of every model, as TensorFlow builds it, against the inventories of the package."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import pytest

from tensorwire.bench import inventories
from tensorwire.bench.suites.train.models import MODELS, find

tf = pytest.importorskip("tensorflow")

from tensorwire.bench.suites.train.models.layers import Network  # noqa: E402

# moving averages and variances of batch normalisation
STATISTICS = {"inception3": 188, "inception4": 298} | {
    "resnet50": 106,
    "resnet101": 208,
    "resnet152": 310,
}
LAYERS = {
    "trivial": (0, 3),
    "lenet": (2, 2),
    "softmax": (0, 1),
    "cifar10_quick": (3, 1),
    "alexnet": (5, 3),
    "overfeat": (5, 3),
    "vgg11": (8, 3),
    "vgg16": (13, 3),
    "vgg19": (16, 3),
    "googlenet": (57, 1),
    "inception3": (94, 1),
    "inception4": (149, 1),
    "resnet50": (53, 1),
    "resnet101": (104, 1),
    "resnet152": (155, 1),
    "lstm": (0, 1),
    "gru": (0, 1),
    "fcn5": (0, 5),
}
"""Convolutions and fully connected layers."""


class Noted:
    """Notes which parameters a model asks for, and gives it placeholders."""

    def __init__(self) -> None:
        self.parameters: list[inventories.Tensor] = []
        self.statistics = 0

    def parameter(self, name: str, shape: Sequence[int], initializer: Any) -> Any:
        self.parameters.append(inventories.Tensor(name, prod(shape)))
        return tf.compat.v1.placeholder(tf.float32, shape)

    def statistic(self, name: str, shape: Sequence[int], initializer: Any) -> Any:
        self.statistics += 1
        return self

    def move_towards(self, value: Any, decay: float) -> None:
        """Nothing moves while a graph is built."""


def test_there_is_an_inventory_of_each() -> None:
    assert sorted(MODELS) == inventories.names()


@pytest.mark.parametrize("name", MODELS)
def test_tensors(name: str) -> None:
    model = find(name)
    noted = Noted()
    with tf.Graph().as_default():
        images = tf.compat.v1.placeholder(tf.float32, (2, *model.shape))
        logits = model.logits(Network(noted, training=True, seed=1), images, model.classes)
    assert logits.shape.as_list() == [2, model.classes]
    assert noted.parameters == inventories.load(name)
    assert noted.statistics == STATISTICS.get(name, 0)
    kinds = [tensor.name.partition("/")[2] for tensor in noted.parameters]
    assert (kinds.count("conv/kernel"), kinds.count("fc/w")) == LAYERS[name]
