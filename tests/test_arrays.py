# SPDX-License-Identifier: Apache-2.0
"""tensorwire.empty and friends, publish: arrays in the arena and what marks them read-only."""

from __future__ import annotations

import math
import mmap
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorwire
from tensorwire import _core, arrays, tensors


def used() -> int:
    return tensorwire.arena_stats()["used"]


def buffer_behind(array: Any) -> _core.Buffer:
    while isinstance(array, np.ndarray):
        array = array.base
    assert isinstance(array, _core.Buffer)
    return array


def test_much_is_copied_at_once() -> None:
    sources = [np.random.default_rng(n).bytes(n * (1 << 20)) for n in range(5)]
    targets = [bytearray(len(each)) for each in sources]
    _core.copy_all(list(zip(targets, sources, strict=True)))
    assert targets == sources


def test_memory_of_another_size_or_that_is_read_only_is_not_copied_to() -> None:
    target = bytearray(4)
    with pytest.raises(ValueError, match="3 bytes is copied to 4"):
        _core.copy_all([(bytearray(1), b"x"), (target, b"abc")])
    with pytest.raises(BufferError):
        _core.copy_all([(b"1234", b"abcd")])
    assert target == bytes(4)


def resident() -> int:
    """Bytes of memory that this process has touched."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def test_memory_that_is_copied_to_itself_is_left_as_it_is() -> None:
    nbytes = 64 << 20
    with mmap.mmap(-1, nbytes) as untouched:
        before = resident()
        _core.copy_all([(untouched, untouched)])
        assert resident() - before < nbytes // 2


def test_arrays_are_copied_whatever_their_order() -> None:
    source = np.arange(6, dtype=np.int32).reshape(2, 3)
    bfloat16 = np.arange(4, dtype=ml_dtypes.bfloat16)
    sources = [source, source.T, source[:, ::2], bfloat16, np.empty((0, 3))]
    targets = [np.zeros_like(each, order="C") for each in sources]
    targets.append(np.zeros((4, 6), np.int32)[::2, ::2])
    sources.append(source)
    for each in sources:
        each.flags.writeable = False
    arrays.copy_all(zip(targets, sources, strict=True))
    for target, each in zip(targets, sources, strict=True):
        np.testing.assert_array_equal(target, each, strict=True)


def is_published(tensor: object) -> bool:
    """Whether the tensor's segment goes out without a copy."""
    (_, memory) = tensors.dumps(tensor)
    return _core.is_published(memory)


# --------------------------------------------------------------------------------- new arrays


@pytest.mark.parametrize("dtype", ["float32", "bool", ">i2", "c16", "M8[ns]", "bfloat16", "int4"])
@pytest.mark.parametrize("shape", [(), 5, (5,), [2, 3], (2, 0), (np.int64(2), 1)])
def test_empty_gives_the_array_that_was_asked_for(shape: Any, dtype: str) -> None:
    array = tensorwire.empty(shape, dtype)
    expected: Any = np.empty(shape, getattr(ml_dtypes, dtype, dtype))
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    if array.size:
        assert array.ctypes.data % 64 == 0
        assert buffer_behind(array).nbytes == array.nbytes
        array[...] = expected[...] = np.ones((), expected.dtype)
        assert array.tobytes() == expected.tobytes()


def test_defaults_and_values() -> None:
    assert tensorwire.empty(3).dtype == np.float32
    assert tensorwire.zeros(2, "M8[s]").view("int64").tolist() == [0, 0]
    assert tensorwire.zeros((2, 2)).tolist() == [[0, 0], [0, 0]]
    assert tensorwire.full(3, 7, "int8").tolist() == [7, 7, 7]
    assert tensorwire.full((2, 2), [1, 2], np.float64).tolist() == [[1, 2], [1, 2]]
    like = tensorwire.empty_like(np.zeros((2, 3), ">f8"))
    assert (like.shape, like.dtype) == ((2, 3), ">f8")
    assert tensorwire.empty_like(np.float32(1)).shape == ()


def test_zeros_over_reused_memory() -> None:
    dirty = tensorwire.full(1000, 255, "uint8")
    del dirty
    assert not tensorwire.zeros(1000, "uint8").any()


def test_memory_lives_as_long_as_its_last_view() -> None:
    before = used()
    array = tensorwire.empty(1 << 16)
    part = array[10:20].view(np.int32)
    segments = tensors.dumps(array)
    during = used()
    assert during >= before + array.nbytes
    del array
    assert used() == during
    del part
    assert used() == during
    del segments
    assert used() == before


def test_a_large_array_starts_on_a_page() -> None:
    assert tensorwire.empty(1 << 20, "uint8").ctypes.data % 4096 == 0


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "message"),
    [
        (-1, "f4", ValueError, r"negative extent in shape \(-1,\)"),
        ((2, -3), "f4", ValueError, r"negative extent in shape \(2, -3\)"),
        ((1 << 62, 1 << 62), "f4", ValueError, "too large"),
        ((1 << 62, 0, 1 << 62), "f4", ValueError, "too large"),
        ((1 << 61,), "f8", ValueError, "too large"),
        (2.5, "f4", TypeError, "float"),
        ("3", "f4", TypeError, "str"),
        (3, object, TypeError, "Python objects"),
        (3, "f4,f4", TypeError, "structured dtype"),
        (3, "S3", TypeError, "text or bytes"),
        (3, "g", TypeError, "differs between machines"),
        (3, "float128_bogus", TypeError, "float128_bogus"),
    ],
)
def test_what_cannot_be_made(shape: Any, dtype: Any, error: Any, message: str) -> None:
    before = used()
    with pytest.raises(error, match=message):
        tensorwire.empty(shape, dtype)
    assert used() == before


def test_a_full_arena_names_its_setting() -> None:
    too_much = tensorwire.arena_stats()["capacity"] + 1
    with pytest.raises(tensorwire.ArenaFullError, match="TENSORWIRE_BUFFER_BYTES") as caught:
        tensorwire.empty(too_much, "uint8")
    assert isinstance(caught.value, MemoryError)
    with pytest.raises(tensorwire.ArenaFullError, match="TENSORWIRE_BUFFER_BYTES"):
        tensorwire.publish(np.broadcast_to(np.uint8(0), too_much))
    assert tensorwire.zeros(3).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("setting", "capacity"),
    [("", 1 << 30), ("TENSORWIRE_BUFFER_BYTES", 32 << 20), ("TF_RDMA_BUF_SIZE", 3 << 30)],
)
def test_the_arena_is_sized_from_what_the_process_may_use_unless_it_is_set(
    setting: str, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TENSORWIRE_BUFFER_BYTES", "TF_RDMA_BUF_SIZE"):
        monkeypatch.delenv(name, raising=False)
    if setting:
        monkeypatch.setenv(setting, str(capacity))
    code = "import tensorwire; print(tensorwire.arena_stats()['capacity'])"
    # A quarter of 4 GiB is 1 GiB, and so is the least of a machine with two or more.
    limited = ["sh", "-c", 'ulimit -v 4194304 && exec "$@"', "sh", sys.executable, "-c", code]
    found = subprocess.run(limited, capture_output=True, check=True)
    assert int(found.stdout) == capacity


def test_arena_stats() -> None:
    before = tensorwire.arena_stats()
    array = tensorwire.empty(1 << 16)
    after = tensorwire.arena_stats()
    assert after["blocks"] == before["blocks"] + 1
    assert after["used"] >= before["used"] + array.nbytes
    assert after["used"] <= after["high_water"] <= after["capacity"]


# ------------------------------------------------------------------------------------ publish


def test_publish_in_place() -> None:
    array = tensorwire.full((2, 3), 1.5)
    assert not is_published(array)
    before = used()
    published = tensorwire.publish(array)
    assert published is array
    assert used() == before
    assert is_published(array)
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 2
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    assert tensorwire.publish(array) is array


def test_publishing_a_view_publishes_its_block() -> None:
    array = tensorwire.zeros((4, 4))
    part = array[1:3]
    assert tensorwire.publish(part) is part
    assert is_published(array)
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        part.flags.writeable = True


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(6.0).reshape(2, 3),
        lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        lambda: np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
        lambda: np.arange(24)[::2],
        lambda: tensorwire.full((4, 4), 3)[:, ::2],
        lambda: np.array(5, ">i8"),
        lambda: np.ones((2, 3), ml_dtypes.bfloat16),
        lambda: np.arange(3).astype("M8[s]"),
        lambda: bytearray(b"abc"),
        lambda: np.float32(2),
    ],
)
def test_anything_else_is_copied_once_into_the_arena(make: Any) -> None:
    source = make()
    expected = np.array(source)
    published = tensorwire.publish(source)
    assert published.dtype == expected.dtype
    assert np.array_equal(published, expected)
    assert is_published(published)
    with pytest.raises(ValueError, match="read-only"):
        published[...] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        published.flags.writeable = True
    if isinstance(source, np.ndarray):
        assert source.flags.writeable
        source[...] = np.zeros((), source.dtype)
        assert np.array_equal(published, expected)


def test_publish_keeps_a_dense_order() -> None:
    source = np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1)
    assert tensorwire.publish(source).strides == source.strides


def test_publish_of_nothing() -> None:
    for source in (np.zeros((0, 3)), tensorwire.empty((2, 0), "int8")):
        published = tensorwire.publish(source)
        assert (published.shape, published.dtype) == (source.shape, source.dtype)
        assert not published.flags.writeable


@pytest.mark.parametrize("name", ["torch", "tensorflow", "jax"])
def test_publish_of_other_frameworks(name: str) -> None:
    module = pytest.importorskip(name, exc_type=ImportError)
    if name == "torch":
        source = module.ones((2, 3), dtype=module.bfloat16, requires_grad=True)
    elif name == "tensorflow":
        source = module.ones((2, 3), dtype=module.bfloat16)
    else:
        source = module.numpy.ones((2, 3), dtype=module.numpy.bfloat16)
    published = tensorwire.publish(source)
    assert published.dtype == ml_dtypes.bfloat16
    assert (published == 1).all()
    assert is_published(published)
    like = tensorwire.empty_like(source)
    assert (like.shape, like.dtype) == ((2, 3), ml_dtypes.bfloat16)


def test_torch_tensors_over_the_arena_travel_published() -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    array = tensorwire.empty((2, 3))
    tensor = torch.from_numpy(array)
    tensor.fill_(2)
    assert not is_published(tensor)
    published = tensorwire.publish(tensor)
    assert published.ctypes.data == array.ctypes.data == tensor.data_ptr()
    assert math.isclose(float(published.sum()), 12)
    assert is_published(tensor)


@pytest.mark.parametrize("thing", [1, "x", b"x", None, [1, 2], {"a": 1}, object()])
def test_what_is_no_tensor(thing: object) -> None:
    for function in (tensorwire.publish, tensorwire.empty_like):
        with pytest.raises(TypeError, match=f"a {type(thing).__name__} is no tensor"):
            function(thing)


def test_what_cannot_travel_cannot_be_published() -> None:
    with pytest.raises(TypeError, match="Python objects"):
        tensorwire.publish(np.array([object()]))
    with pytest.raises(TypeError, match="structured dtype"):
        tensorwire.publish(np.zeros(2, "f4,i4"))


def test_publish_of_a_tree() -> None:
    weights = {
        "layer": {"kernel": np.ones((64, 64), np.float32), "bias": tensorwire.zeros(64)},
        "steps": 3,
        "history": [np.arange(5), None, ("a", np.float32(2.5))],
    }
    published = tensorwire.publish(weights)
    assert list(published) == list(weights)
    kernel, bias = published["layer"]["kernel"], published["layer"]["bias"]
    assert is_published(kernel)
    assert is_published(bias)
    assert np.array_equal(kernel, weights["layer"]["kernel"])  # type: ignore[index]
    assert bias.ctypes.data == weights["layer"]["bias"].ctypes.data  # type: ignore[index]
    assert published["steps"] == 3
    array, nothing, pair = published["history"]
    assert is_published(array)
    assert nothing is None
    assert pair == ("a", 2.5)
    assert isinstance(pair, tuple)


def test_scalars_of_a_tree_stay_as_they_are() -> None:
    scalars = (
        np.float64(2.5),
        np.datetime64("2024-01-01"),
        np.str_("text"),
        np.bytes_(b"bytes"),
        ml_dtypes.bfloat16(1),
    )
    published = tensorwire.publish([np.ones(3), *scalars])
    assert all(one is other for one, other in zip(published[1:], scalars, strict=True))
    alone = tensorwire.publish(np.timedelta64(200, "s"))
    assert (alone.dtype, alone.shape) == (np.dtype("m8[s]"), ())
    assert alone == np.timedelta64(200, "s")


def test_a_tree_that_cannot_be_published_names_the_place() -> None:
    with pytest.raises(TypeError, match=r"tensor\['a'\]\[1\]: .*Python objects"):
        tensorwire.publish({"a": [1, np.array([object()])]})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="holding itself"):
        tensorwire.publish(endless)
