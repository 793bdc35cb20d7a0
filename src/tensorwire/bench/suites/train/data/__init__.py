# SPDX-License-Identifier: Apache-2.0
"""The data sets by name, and how a folder is recognised as one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class BrokenFileError(ValueError):
    """A data file that is not what its name says; the message names it."""

    def __init__(self, path: Path | str, what: str) -> None:
        super().__init__(f"{path}: {what}")


@dataclass(frozen=True)
class DataSet:
    """shape: (height, width, channels) of an image, before it is resized for the model.

    files: patterns of names in the data_dir, all of which must be there; none when the data come
    with a package.
    """

    name: str
    shape: tuple[int, int, int]
    classes: int
    files: Sequence[str]


_SETS = (
    DataSet(
        "mnist", (28, 28, 1), 10, ("train-images[-.]idx3-ubyte*", "train-labels[-.]idx1-ubyte*")
    ),
    DataSet("cifar10", (32, 32, 3), 10, ("data_batch_*.bin",)),
    DataSet("imagenet", (224, 224, 3), 1001, ("train-*-of-*",)),
    DataSet("digits", (8, 8, 1), 10, ()),
)
DATA_SETS = {data_set.name: data_set for data_set in _SETS}


def find(name: str) -> DataSet:
    """ValueError for a name that is not there."""
    if name not in DATA_SETS:
        raise ValueError(f"no data set is called {name!r}; there are {', '.join(DATA_SETS)}")
    return DATA_SETS[name]


def guess(folder: Path) -> DataSet:
    """The data set whose files are in the folder. ValueError when there is none."""
    for data_set in _SETS:
        if data_set.files and all(any(folder.glob(pattern)) for pattern in data_set.files):
            return data_set
    known = "; ".join(f"{s.name}: {' and '.join(s.files)}" for s in _SETS if s.files)
    raise ValueError(f"{folder} holds no data set that is known ({known})")


def files(data_set: DataSet, folder: Path) -> list[Path]:
    """Those of the data set in the folder, in order. ValueError when some are missing."""
    found = []
    for pattern in data_set.files:
        matching = sorted(folder.glob(pattern))
        if not matching:
            raise ValueError(f"{folder} has no {pattern}, which {data_set.name} needs")
        found += matching
    return found
