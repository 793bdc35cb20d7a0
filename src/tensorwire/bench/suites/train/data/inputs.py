# SPDX-License-Identifier: Apache-2.0
"""A worker's inputs as tensors: one batch of images and labels each step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorflow as tf
from tensorwire.bench.suites.train.data import DataSet, arrays, files, records

PREFETCH = 2


class Inputs:
    """images: (batch, height, width, channels), float32 about 0; labels: (batch,), int32.

    start: what to run once before the first step.
    """

    def __init__(self, images: Any, labels: Any, start: Any) -> None:
        self.images = images
        self.labels = labels
        self.start = start


def synthetic(shape: tuple[int, int, int], batch: int, classes: int, seed: int) -> Inputs:
    """One random batch, made once and kept on the device."""
    random = tf.random.truncated_normal((batch, *shape), stddev=0.5, seed=seed)
    labels = tf.random.uniform((batch,), maxval=classes, dtype=tf.int32, seed=seed + 1)
    kept = [
        tf.compat.v1.get_variable(name, initializer=value, trainable=False, use_resource=True)
        for name, value in (("inputs/images", random), ("inputs/labels", labels))
    ]
    start = tf.group([variable.initializer for variable in kept])
    return Inputs(kept[0].read_value(), kept[1].read_value(), start)


def real(
    data_set: DataSet,
    folder: Path | None,
    shape: tuple[int, int, int],
    batch: int,
    *,
    seed: int,
    worker: int,
    workers: int,
) -> Inputs:
    """Every worker reads all examples, in an order that depends on the seed and on its number.

    ValueError when the data cannot be had; BrokenFileError names a file that is damaged.
    """
    if data_set.name == "imagenet":
        assert folder is not None
        stream = imagenet(files(data_set, folder), shape, seed, worker, workers).batch(
            batch, drop_remainder=True
        )
    else:
        examples = arrays.load(data_set, folder)
        signature = (
            tf.TensorSpec((batch, *data_set.shape), tf.uint8),
            tf.TensorSpec((batch,), tf.int32),
        )
        stream = tf.data.Dataset.from_generator(
            lambda: batches(examples, batch, seed + worker), output_signature=signature
        )
    with tf.device("/cpu:0"):
        iterator = tf.compat.v1.data.make_initializable_iterator(stream.prefetch(PREFETCH))
        images, labels = iterator.get_next()
        images = tf.cast(images, tf.float32) / 127.5 - 1.0
    if tuple(images.shape[1:3]) != shape[:2]:
        images = tf.image.resize(images, shape[:2])
    return Inputs(tf.reshape(images, (batch, *shape)), labels, iterator.initializer)


def batches(
    examples: arrays.Examples, batch: int, seed: int
) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]]:
    """Without end: all examples in a random order, then in another."""
    random = np.random.default_rng(seed)
    waiting = np.empty(0, np.int64)
    while True:
        while len(waiting) < batch:
            waiting = np.concatenate([waiting, random.permutation(len(examples.labels))])
        chosen, waiting = waiting[:batch], waiting[batch:]
        yield examples.images[chosen], examples.labels[chosen]


def imagenet(
    paths: list[Path], shape: tuple[int, int, int], seed: int, worker: int, workers: int
) -> Any:
    """Records with ``image/encoded`` (JPEG) and ``image/class/label``, 1 to 1000."""
    records.check(paths)

    def decode(record: Any) -> tuple[Any, Any]:
        features = tf.io.parse_single_example(
            record,
            {
                "image/encoded": tf.io.FixedLenFeature((), tf.string),
                "image/class/label": tf.io.FixedLenFeature((), tf.int64),
            },
        )
        image = tf.io.decode_jpeg(features["image/encoded"], channels=shape[2])
        image = tf.image.resize(image, shape[:2])
        return image, tf.cast(features["image/class/label"], tf.int32)

    stream = tf.data.TFRecordDataset([str(path) for path in paths])
    stream = stream.shard(workers, worker).shuffle(1024, seed=seed).repeat()
    return stream.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
