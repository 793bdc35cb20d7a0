# SPDX-License-Identifier: Apache-2.0
"""The trainable tensors of well-known image models, as tf_cnn_benchmarks trains them.

One file for each model: a line for each tensor in the order of creation, its name (numbered, for
models name many tensors alike) and its number of float32 elements, separated by a tab.
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple


class Tensor(NamedTuple):
    """elements: of float32, 4 bytes each."""

    name: str
    elements: int


def names() -> list[str]:
    """The models there are."""
    found = (entry.name for entry in files(__name__).iterdir())
    return sorted(name.removesuffix(".tsv") for name in found if name.endswith(".tsv"))


def load(model: str) -> list[Tensor]:
    """The tensors of a model; ValueError for one that is not there."""
    if model not in names():
        raise ValueError(f"no model is called {model!r}; there are {', '.join(names())}")
    lines = files(__name__).joinpath(f"{model}.tsv").read_text().splitlines()
    pairs = (line.split("\t") for line in lines if not line.startswith("#"))
    return [Tensor(name, int(elements)) for name, elements in pairs]
