# SPDX-License-Identifier: Apache-2.0
"""The tensors of the models, against what tf_cnn_benchmarks' model files come to."""

from __future__ import annotations

import pytest

from tensorwire.bench import inventories

# tensors, millions of parameters, elements of the largest tensor
KNOWN = {
    "trivial": (6, 4.264, 4100096),
    "lenet": (8, 2.173, 1605632),
    "alexnet": (16, 61.842, 37748736),
    "overfeat": (16, 145.925, 113246208),
    "googlenet": (116, 7.000, 1025024),
    "vgg11": (22, 132.867, 102760448),
    "vgg16": (32, 138.362, 102760448),
    "vgg19": (38, 143.671, 102760448),
    "inception3": (190, 23.819, 2050048),
    "inception4": (300, 42.650, 1537536),
    "resnet50": (161, 25.559, 2359296),
    "resnet101": (314, 44.551, 2359296),
    "softmax": (2, 0.008, 7840),
    "cifar10_quick": (8, 0.090, 51200),
    "fcn5": (10, 53.600, 16777216),
    "lstm": (14, 9.419, 1048576),
    "gru": (11, 7.321, 1048576),
    "resnet152": (467, 60.195, 2359296),
}


def test_all_models_are_there() -> None:
    assert inventories.names() == sorted(KNOWN)


@pytest.mark.parametrize("model", KNOWN)
def test_tensors(model: str) -> None:
    tensors = inventories.load(model)
    count, millions, largest = KNOWN[model]
    elements = [tensor.elements for tensor in tensors]
    assert len(tensors) == count
    assert round(sum(elements) / 1e6, 3) == pytest.approx(millions)
    assert max(elements) == largest
    assert len({tensor.name for tensor in tensors}) == count


@pytest.mark.parametrize("model", ["resnet51", "", "../work", "__init__"])
def test_an_unknown_model_is_named(model: str) -> None:
    with pytest.raises(ValueError, match="no model is called"):
        inventories.load(model)
