# SPDX-License-Identifier: Apache-2.0
"""Reading and writing tensors of a peer, and what is said of it when that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.remote.pairs import ALL, PATIENCE, Pair

import tensorwire as tw
from tensorwire import remote
from tensorwire.remote import Rights


def test_elements_are_read_and_written_where_they_are(shared: Pair) -> None:
    exposed, tensor = shared.opened((100, 50))
    assert (tensor.shape, tensor.ndim, len(tensor), tensor.nbytes) == ((100, 50), 2, 100, 20_000)
    assert tensor.dtype == np.float32
    assert tensor.rights == ALL
    values = np.random.default_rng(1).random((100, 50), np.float32)
    tensor.write(values)
    np.testing.assert_array_equal(exposed.array, values)
    np.testing.assert_array_equal(tensor.read(), values)
    out = np.empty_like(values)
    assert tensor.read(out, timeout=PATIENCE) is out
    np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize(
    "index",
    [
        5,
        (5, 7),
        slice(10, 20),
        (slice(None), 3),
        (slice(1, 90, 7), slice(2, 40, 3)),
        (..., slice(None, 4)),
        slice(7, 7),
    ],
)
def test_parts_are_read_and_written(shared: Pair, index: Any) -> None:
    exposed, tensor = shared.opened((100, 50), "int32")
    exposed.array[:] = np.arange(5000).reshape(100, 50)
    before = exposed.array.copy()
    part = tensor[index]
    np.testing.assert_array_equal(part.read(), before[index])
    new = -np.asarray(before[index]) - 1
    part.write(new)
    before[index] = new
    np.testing.assert_array_equal(exposed.array, before)


def test_local_arrays_may_have_any_strides(shared: Pair) -> None:
    exposed, tensor = shared.opened((4, 6), "float64")
    wide = np.arange(48, dtype=np.float64).reshape(4, 12)
    tensor.write(wide[:, ::2])
    np.testing.assert_array_equal(exposed.array, wide[:, ::2])
    out = np.zeros((6, 4))
    tensor.read(out.T)
    np.testing.assert_array_equal(out.T, exposed.array)
    with pytest.raises(ValueError, match="C order"):
        tensor.start_read(out.T)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "complex64", "bool", "int8", ">i4"])
def test_dtypes(shared: Pair, dtype: str) -> None:
    parsed = np.dtype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else np.dtype(dtype)
    values = np.arange(6).reshape(2, 3).astype(parsed)
    exposed, tensor = shared.opened((2, 3), parsed)
    tensor.write(values)
    np.testing.assert_array_equal(exposed.array, values)
    assert tensor.read().dtype == parsed
    np.testing.assert_array_equal(tensor[:, 1].read(), values[:, 1])


def test_times_travel(shared: Pair) -> None:
    exposed, tensor = shared.opened(3, "datetime64[ns]")
    tensor.write(np.array([1, 2, 3], "datetime64[ns]"))
    assert exposed.array.tolist() == tensor.read().tolist() == [1, 2, 3]


def test_tensors_without_elements_or_axes(shared: Pair) -> None:
    exposed, tensor = shared.opened((0, 3))
    assert tensor.read().shape == (0, 3)
    tensor.write(np.empty((0, 3), np.float32), signal=remote.Add(3))
    assert exposed.signal.value == 3
    tensor.start_read(np.empty((0, 3), np.float32)).wait(PATIENCE)
    exposed, tensor = shared.opened(())
    tensor.write(np.float32(2.5).reshape(()))
    assert tensor.read() == exposed.array == 2.5
    with pytest.raises(TypeError, match="no length"):
        len(tensor)


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (np.zeros(4, np.float64), TypeError, "float64, and the remote tensor float32"),
        (np.zeros(5, np.float32), ValueError, r"shape \(5,\), and the remote tensor \(4,\)"),
        (np.zeros((4, 1), np.float32), ValueError, "shape"),
        ([1.0, 2.0, 3.0, 4.0], TypeError, "a list is no tensor"),
        (1.0, TypeError, "a float is no tensor"),
    ],
)
def test_a_wrong_array_is_refused(
    shared: Pair, value: Any, error: type[Exception], said: str
) -> None:
    exposed, tensor = shared.opened(4)
    for call in (tensor.write, tensor.read, tensor.start_write, tensor.start_read):
        with pytest.raises(error, match=said):
            call(value)
    assert not exposed.array.any()


def test_a_read_only_array_is_no_destination(shared: Pair) -> None:
    _, tensor = shared.opened(4)
    out = np.zeros(4, np.float32)
    out.flags.writeable = False
    for call in (tensor.read, tensor.start_read):
        with pytest.raises(ValueError, match="read-only"):
            call(out)


def test_words_are_updated(shared: Pair) -> None:
    exposed, tensor = shared.opened((2, 3), "uint64")
    exposed.array[1, 2] = 5
    assert tensor.fetch_add((1, 2), 2) == 5
    assert tensor.fetch_add((1, 2), -8) == 7
    assert tensor[1].fetch_add(2, 1) == 2**64 - 1
    assert tensor.compare_swap((-1, 2), 1, 9) == 0
    assert tensor.compare_swap((1, 2), 0, 9) == 0
    assert exposed.array.tolist() == [[0, 0, 0], [0, 0, 9]]
    with pytest.raises(IndexError):
        tensor.fetch_add((1, 3), 1)
    with pytest.raises(IndexError, match="one element"):
        tensor.fetch_add(1, 1)
    _, other = shared.opened(3, "int32")
    with pytest.raises(TypeError, match="only words of uint64"):
        other.fetch_add(0, 1)
    with pytest.raises(TypeError, match="only words of uint64"):
        other.compare_swap(0, 1, 2)


def test_numbers_of_numpy_are_numbers(shared: Pair) -> None:
    exposed, tensor = shared.opened(np.int64(4), "uint64")
    assert exposed.array.shape == (4,)
    assert tensor.fetch_add(np.int64(0), np.int64(7)) == 0
    assert tensor.fetch_add(0, np.int32(-2)) == 7
    assert tensor.compare_swap(0, np.uint64(5), np.int64(-1)) == 5
    assert exposed.array[0] == 2**64 - 1
    with pytest.raises(TypeError, match="interpreted as an integer"):
        tensor.fetch_add(0, 1.5)  # type: ignore[arg-type]
    with shared.device.allocate((np.int64(2), 3), "uint8") as allocated:
        assert allocated.shape == (2, 3)
    with pytest.raises(TypeError, match="interpreted as an integer"):
        shared.host.empty((2, 0.5), rights=ALL)  # type: ignore[arg-type]


def refused(*calls: Callable[[], object]) -> None:
    for call in calls:
        with pytest.raises(remote.PermissionDeniedError):
            call()


def test_each_right_is_needed(shared: Pair) -> None:
    row = np.zeros(4, np.uint64)
    _, tensor = shared.opened(4, "uint64", Rights.READ)
    tensor.read(row)
    refused(
        lambda: tensor.write(row),
        lambda: tensor[::2].write(row[::2]),
        lambda: tensor.start_write(row),
        lambda: tensor.fetch_add(0, 1),
        lambda: tensor.compare_swap(0, 1, 1),
        lambda: tensor.write(row, signal=remote.Add()),
        lambda: tensor.signal(remote.Set(1)),
        lambda: tensor.scatter([1], row[:1]),
    )
    exposed, tensor = shared.opened(4, "uint64", Rights.WRITE)
    tensor.write(row, signal=remote.Add())
    assert exposed.signal.value == 1
    refused(
        tensor.read,
        lambda: tensor[::2].read(),
        lambda: tensor.start_read(row),
        lambda: tensor.gather([1]),
        lambda: tensor.fetch_add(0, 1),
    )


def test_concealed_memory_is_not_found(shared: Pair) -> None:
    row = np.ones(4, np.uint64)
    exposed, tensor = shared.opened(4, "uint64")
    prepared = shared.device.batch()
    prepared.write(tensor, row)
    ready = prepared.prepare()
    exposed.conceal(PATIENCE)
    exposed.conceal(PATIENCE)
    shared.hear()
    for call in (
        tensor.read,
        lambda: tensor[::2].read(),
        lambda: tensor.write(row),
        lambda: tensor.write(row, signal=remote.Add()),
        lambda: tensor.signal(remote.Add()),
        lambda: tensor.start_write(row).wait(PATIENCE),
        lambda: tensor.fetch_add(0, 1),
        lambda: tensor.compare_swap(0, 0, 1),
        lambda: tensor.gather([0]),
        lambda: ready.start().wait(PATIENCE),
        lambda: shared.device.open(exposed.handle),
    ):
        with pytest.raises(remote.NotFoundError):
            call()
    assert not exposed.array.any()
    assert exposed.signal.value == 0
    assert shared.device.peer.alive


def test_foreign_memory_is_exposed_where_it_lies(shared: Pair) -> None:
    values = np.arange(10, dtype=np.uint64)
    with shared.host.expose(values, rights=ALL) as exposed:
        tensor = shared.device.open(exposed.handle)
        assert not tensor.mapped
        tensor[2:4].write(np.array([7, 8], np.uint64), signal=remote.Set(5))
        assert values.tolist()[:5] == [0, 1, 7, 8, 4]
        assert exposed.signal.wait(5, PATIENCE) == 5
        assert tensor.fetch_add(0, 3) == 0
        assert values[0] == 3
    shared.hear()
    with pytest.raises(remote.NotFoundError):
        tensor.read()
    arena: Any = tw.publish(np.arange(5.0))
    with shared.host.expose(arena) as exposed:
        tensor = shared.device.open(exposed.handle)
        assert tensor.mapped == (shared.device.path().way == "mapped")
        assert tensor.read().tolist() == [0, 1, 2, 3, 4]
        assert tensor[1:4:2].read().tolist() == [1, 3]
        with pytest.raises(remote.PermissionDeniedError):
            tensor.write(np.zeros(5))
    shared.hear()
    with pytest.raises(remote.NotFoundError):
        tensor.read()


@pytest.mark.parametrize(
    ("tensor", "rights", "error", "said"),
    [
        (np.zeros((4, 4))[:, :2], Rights.READ, ValueError, "C order"),
        (np.frombuffer(b"constant", np.uint8), Rights.WRITE, ValueError, "must not be written"),
        (np.zeros(17, np.uint8)[1:], Rights.UPDATE, ValueError, "multiple of 8"),
        (np.array(["text"]), Rights.READ, TypeError, "text"),
        ("text", Rights.READ, TypeError, "no tensor"),
    ],
)
def test_what_cannot_be_exposed(
    shared: Pair, tensor: Any, rights: Rights, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        shared.host.expose(tensor, rights=rights)


def test_memory_of_a_device_is_refused(shared: Pair) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"on meta: .*\.cpu\(\)"):
        shared.host.expose(torch.zeros(2, device="meta"), rights=Rights.READ)


def test_operations_are_begun(shared: Pair) -> None:
    exposed, tensor = shared.opened((64, 1000))
    source = np.random.default_rng(2).random((64, 1000), np.float32)
    writes = [tensor[row].start_write(source[row]) for row in range(64)]
    for write in writes:
        write.wait(PATIENCE)
        assert write.done
    np.testing.assert_array_equal(exposed.array, source)
    out = np.empty((64, 500), np.float32)
    read = tensor[:, ::2].start_read(out)
    read.wait(PATIENCE)
    read.wait(0.0)
    np.testing.assert_array_equal(out, source[:, ::2])
    tensor[3].start_write(source[5], signal=remote.Add()).wait(PATIENCE)
    assert exposed.signal.value == 1


def test_a_fence_and_a_flush(shared: Pair) -> None:
    _, tensor = shared.opened(1 << 16, "uint8")
    out = np.ones(1 << 16, np.uint8)
    for turn in range(1, 20):
        tensor.start_read(out)
        shared.device.fence()
        tensor.start_write(np.full(1 << 16, turn, np.uint8))
        shared.device.fence()
    shared.device.flush(PATIENCE)
    assert (out == 18).all()
    assert (tensor.read() == 19).all()


def test_rows_are_gathered_and_scattered(shared: Pair) -> None:
    exposed, table = shared.opened((1000, 16))
    exposed.array[:] = np.arange(16000).reshape(1000, 16)
    rows = np.random.default_rng(3).integers(-1000, 1000, (7, 5))
    np.testing.assert_array_equal(table.gather(rows), exposed.array[rows])
    np.testing.assert_array_equal(table[::2, 3:5].gather([1, 4]), exposed.array[[2, 8], 3:5])
    out = np.empty((2, 16), np.float32)
    assert table.gather([3, 4], out) is out
    values = -np.ones((3, 16), np.float32)
    table.scatter([5, 1, -1], values, signal=remote.Add(3))
    assert (exposed.array[[5, 1, 999]] == -1).all()
    assert exposed.signal.value == 3
    assert table.gather([]).shape == (0, 16)
    np.testing.assert_array_equal(table.gather(np.array([999], np.uint64)), exposed.array[[999]])
    outside = [1000], [-1001], np.array([2**64 - 1], np.uint64)
    for rows_, error in (*((each, IndexError) for each in outside), ([0.5], TypeError)):
        with pytest.raises(error):
            table.gather(rows_)
    with pytest.raises(ValueError, match="twice"):
        table.scatter([3, 3], values[:2])
    with pytest.raises(ValueError, match="shape"):
        table.gather([1, 2], np.empty((3, 16), np.float32))
