# SPDX-License-Identifier: Apache-2.0
"""Data sets that fit into memory, as arrays of bytes: MNIST, CIFAR-10, scikit-learn's digits."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tensorwire.bench.suites.train.data import BrokenFileError, DataSet, files, idx


class Examples(NamedTuple):
    """images: (count, height, width, channels), 0 to 255; labels: (count,), below the classes."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int32]


def load(data_set: DataSet, folder: Path | None) -> Examples:
    """The training examples. ValueError, or BrokenFileError, when they cannot be had."""
    if data_set.name == "digits":
        return digits()
    assert folder is not None, "without a folder, inputs are synthetic"
    paths = files(data_set, folder)
    return mnist(*paths[:2]) if data_set.name == "mnist" else cifar10(paths)


def mnist(images: Path, labels: Path) -> Examples:
    pixels, classes = idx.read(images), idx.read(labels)
    if pixels.ndim != 3 or pixels.shape[1:] != (28, 28):
        raise BrokenFileError(images, f"images of {pixels.shape[1:]}, not of (28, 28)")
    if classes.shape != pixels.shape[:1]:
        raise BrokenFileError(labels, f"{classes.shape} labels for {len(pixels)} images")
    return Examples(pixels[..., np.newaxis], _labels(classes, 10, labels))


def cifar10(paths: list[Path]) -> Examples:
    """The binary version: records of a label and 3 x 32 x 32 bytes, channel by channel."""
    size = 1 + 3 * 32 * 32
    images, labels = [], []
    for path in paths:
        content = np.frombuffer(path.read_bytes(), np.uint8)
        if not content.size or content.size % size:
            raise BrokenFileError(path, f"{content.size} bytes are no whole number of {size}")
        records = content.reshape(-1, size)
        labels.append(_labels(records[:, 0], 10, path))
        images.append(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return Examples(np.concatenate(images), np.concatenate(labels))


def digits() -> Examples:
    """1,797 handwritten digits of 8 x 8 pixels, part of scikit-learn; nothing is downloaded."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise ValueError("digits come with scikit-learn: pip install scikit-learn") from None
    found = load_digits()
    images = (found.images[..., np.newaxis] * (255 / 16)).astype(np.uint8)
    return Examples(images, found.target.astype(np.int32))


def _labels(found: npt.NDArray[np.uint8], classes: int, path: Path) -> npt.NDArray[np.int32]:
    if not len(found):
        raise BrokenFileError(path, "empty")
    if found.max() >= classes:
        raise BrokenFileError(path, f"label {found.max()}, but there are {classes} classes from 0")
    return found.astype(np.int32)
