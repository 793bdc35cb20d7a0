# SPDX-License-Identifier: Apache-2.0
"""Readers of data files, and what they say about broken ones."""

from __future__ import annotations

import gzip
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensorwire.bench.suites.train import data
from tensorwire.bench.suites.train.data import BrokenFileError, arrays, idx, records

same_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
ARRAYS = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, max_side=6))


def record_file(contents: list[bytes]) -> bytes:
    """A TFRecord file."""
    whole = b""
    for content in contents:
        length = struct.pack("<Q", len(content))
        whole += length + struct.pack("<I", records.masked_crc(length)) + content
        whole += struct.pack("<I", records.masked_crc(content))
    return whole


@same_folder
@given(array=ARRAYS, compressed=st.booleans())
def test_idx_files_come_back(tmp_path: Path, array: np.ndarray, compressed: bool) -> None:
    path = tmp_path / "array"
    idx.write(path, array)
    if compressed:
        packed = tmp_path / "array.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path = packed
    found = idx.read(path)
    assert found.shape == array.shape
    assert (found == array).all()


@same_folder
@given(array=ARRAYS, data=st.data())
def test_idx_files_of_another_length_are_refused(
    tmp_path: Path, array: np.ndarray, data: st.DataObject
) -> None:
    path = tmp_path / "train-images"
    idx.write(path, array)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    for content in (whole[:cut], whole + b"\0"):
        path.write_bytes(content)
        with pytest.raises(BrokenFileError, match="train-images"):
            idx.read(path)


@same_folder
@given(content=st.binary(max_size=200), zeros=st.integers(0, 2))
def test_any_bytes_are_an_array_or_refused(tmp_path: Path, content: bytes, zeros: int) -> None:
    path = tmp_path / "any"
    content = bytes(zeros) + content
    path.write_bytes(content)
    with suppress(BrokenFileError):
        found = idx.read(path)
        idx.write(path, found)
        assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"no gzip", gzip.compress(b"\0\0", mtime=0)[:-4]])
def test_damaged_gzip_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train-images.gz"
    path.write_bytes(content)
    with pytest.raises(BrokenFileError, match=r"train-images\.gz"):
        idx.read(path)


def mnist(folder: Path, images: int = 5, labels: int = 5) -> None:
    pixels = np.arange(images * 28 * 28, dtype=np.uint32).astype(np.uint8)
    idx.write(folder / "train-images-idx3-ubyte", pixels.reshape(images, 28, 28))
    idx.write(folder / "train-labels-idx1-ubyte", np.arange(labels, dtype=np.uint8) % 10)


def test_mnist(tmp_path: Path) -> None:
    mnist(tmp_path)
    data_set = data.guess(tmp_path)
    assert data_set.name == "mnist"
    examples = arrays.load(data_set, tmp_path)
    assert examples.images.shape == (5, 28, 28, 1)
    assert examples.images[1, 0, 3, 0] == (28 * 28 + 3) % 256
    assert examples.labels.tolist() == [0, 1, 2, 3, 4]


def test_mnist_with_a_label_too_few(tmp_path: Path) -> None:
    mnist(tmp_path, images=5, labels=4)
    with pytest.raises(BrokenFileError, match=r"train-labels.*\(4,\) labels for 5 images"):
        arrays.load(data.find("mnist"), tmp_path)


def test_mnist_without_labels(tmp_path: Path) -> None:
    mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match="train-labels"):
        arrays.load(data.find("mnist"), tmp_path)


def test_cifar10(tmp_path: Path) -> None:
    record = bytes([7]) + bytes([10]) * 1024 + bytes([20]) * 1024 + bytes([30]) * 1024
    for number in (1, 2):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(record * number)
    data_set = data.guess(tmp_path)
    assert data_set.name == "cifar10"
    examples = arrays.load(data_set, tmp_path)
    assert examples.images.shape == (3, 32, 32, 3)
    assert examples.images[0, 4, 5].tolist() == [10, 20, 30]
    assert examples.labels.tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 bytes"),
        (bytes(3072), "no whole number of 3073"),
        (bytes([10]) + bytes(3072), "label 10, but there are 10 classes"),
    ],
)
def test_broken_cifar10(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(content)
    with pytest.raises(BrokenFileError, match=f"data_batch_1.bin.*{says}"):
        arrays.load(data.find("cifar10"), tmp_path)


def test_digits_come_with_a_package() -> None:
    pytest.importorskip("sklearn")
    examples = arrays.load(data.find("digits"), None)
    assert examples.images.shape == (1797, 8, 8, 1)
    assert examples.images.max() == 255
    assert set(examples.labels.tolist()) == set(range(10))


def test_the_crc_is_castagnoli() -> None:
    masked = ((0xE3069283 >> 15) | (0xE3069283 << 17)) + 0xA282EAD8  # of "123456789", RFC 3720
    assert records.masked_crc(b"123456789") == masked & 0xFFFFFFFF


@same_folder
@given(contents=st.lists(st.binary(max_size=50), min_size=1, max_size=5), data=st.data())
def test_records(tmp_path: Path, contents: list[bytes], data: st.DataObject) -> None:
    path = tmp_path / "train-00000-of-00001"
    whole = record_file(contents)
    path.write_bytes(whole)
    assert list(records.lengths(path)) == [len(content) for content in contents]
    assert records.check([path, path]) == 2 * len(contents)

    starts = {len(record_file(contents[:count])) for count in range(len(contents))}
    cut = data.draw(st.integers(0, len(whole) - 1).filter(lambda place: place not in starts))
    path.write_bytes(whole[:cut])
    with pytest.raises(BrokenFileError, match="train-00000-of-00001: cut off"):
        records.check([path])


@same_folder
@given(content=st.binary(min_size=1, max_size=100))
def test_any_bytes_are_records_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train-00000-of-00001"
    path.write_bytes(content)
    with suppress(BrokenFileError):
        assert records.check([path]) >= 1


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    path = tmp_path / "train-00000-of-00001"
    path.touch()
    with pytest.raises(BrokenFileError, match="empty"):
        records.check([path])
