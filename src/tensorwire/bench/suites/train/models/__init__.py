# SPDX-License-Identifier: Apache-2.0
"""The models by name: what they read, and where their layers are written down."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorwire.bench.suites.train.models.layers import Network


@dataclass(frozen=True)
class Model:
    """shape: (height, width, channels) of an input; classes: without a data set to say so.

    batch: images in a step of one device when nothing else is asked for.
    rows: whether height and width are the data's own (a sequence), else images are resized.
    """

    name: str
    module: str
    shape: tuple[int, int, int]
    batch: int
    classes: int = 1001
    learning_rate: float = 0.005
    rows: bool = False

    def logits(self, net: Network, images: Any, classes: int) -> Any:
        """(batch, classes), from images (batch, height, width, channels)."""
        module = import_module(f"{__name__}.{self.module}")
        return net.dense(getattr(module, self.name)(net, images), classes, relu=False)


_MODELS = (
    Model("trivial", "plain", (227, 227, 3), 32),
    Model("lenet", "plain", (28, 28, 3), 32),
    Model("softmax", "plain", (28, 28, 1), 32, classes=10),
    Model("cifar10_quick", "plain", (32, 32, 3), 128, classes=10),
    Model("alexnet", "plain", (227, 227, 3), 512),
    Model("overfeat", "plain", (231, 231, 3), 32),
    Model("vgg11", "plain", (224, 224, 3), 64),
    Model("vgg16", "plain", (224, 224, 3), 64),
    Model("vgg19", "plain", (224, 224, 3), 64),
    Model("googlenet", "inception", (224, 224, 3), 32),
    Model("inception3", "inception", (299, 299, 3), 32),
    Model("inception4", "inception", (299, 299, 3), 32),
    Model("resnet50", "resnet", (224, 224, 3), 64),
    Model("resnet101", "resnet", (224, 224, 3), 32),
    Model("resnet152", "resnet", (224, 224, 3), 32),
    Model("lstm", "recurrent", (32, 1024, 1), 32, rows=True),
    Model("gru", "recurrent", (32, 1024, 1), 32, rows=True),
    Model("fcn5", "plain", (28, 28, 1), 32, classes=10),
)
MODELS = {model.name: model for model in _MODELS}


def find(name: str) -> Model:
    """ValueError for a name that is not there."""
    if name not in MODELS:
        raise ValueError(f"Invalid model name '{name}'; there are {', '.join(MODELS)}")
    return MODELS[name]
