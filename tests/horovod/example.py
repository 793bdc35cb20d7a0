# SPDX-License-Identifier: Apache-2.0
"""One rank of one of Horovod's public examples: ``python example.py RANKS PROGRAM ARGUMENT...``, in
a folder that ``examples.py`` has filled.

The program is the main one, as if Python had been told to run it. Data sets that it would download
are made here instead.
"""

from __future__ import annotations

import runpy
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np

SIDE: Final = 6
"""Pixels: the programs have thousands of steps, which do not take long with small images."""
IMAGES: Final = 1000


def digits(path: str = "") -> Any:
    """What Keras' ``mnist.load_data`` returns, of other images."""
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (IMAGES, SIDE, SIDE), np.uint8)
    labels = random.integers(0, 10, IMAGES, np.uint8)
    return (images, labels), (images[:100], labels[:100])


def main() -> None:
    del sys.argv[0]
    ranks = int(sys.argv.pop(0))
    path = Path(sys.argv[0])
    text = path.read_text()
    if "mnist.load_data" in text:
        import tensorflow as tf

        tf.keras.datasets.mnist.load_data = digits
    if "torchvision" in text:
        import torch

        # A torchvision for GPUs has its operators in a library that needs a torch for them. It
        # loads without, if the two are there that it describes.
        if torch.version.cuda is None and "+cpu" not in version("torchvision"):
            for name in ("nms", "qnms"):
                torch.library.define(
                    f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor"
                )
    sys.path[0] = str(path.parent)
    found = runpy.run_path(str(path), run_name="__main__")
    hvd = found["hvd"]
    size = hvd.size()
    assert size == ranks, f"{path} ran with {size} ranks"
    print(f"rank {hvd.rank()} of {size} is done")


if __name__ == "__main__":
    main()
