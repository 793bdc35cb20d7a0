# SPDX-License-Identifier: Apache-2.0
"""Tensors of frameworks as sources and destinations of remote memory."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.remote.pairs import ALL, PATIENCE, Pair, pair

from tensorwire import remote
from tensorwire.remote import Rights
from tensorwire.tensors import TensorSpec

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def there() -> Iterator[Pair]:
    with pair("shm") as found:
        yield found


@pytest.fixture(params=["torch", "jax", "tensorflow"])
def framework(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param)


def tensor_of(framework: Any, values: Any) -> Any:
    if framework.__name__ == "torch":
        return framework.from_numpy(values.copy())
    if framework.__name__ == "jax":
        return importlib.import_module("jax.numpy").asarray(values)
    return framework.constant(values)


def test_a_tensor_is_written_and_read(there: Pair, framework: Any) -> None:
    exposed, tensor = there.opened((3, 4))
    tensor.write(tensor_of(framework, VALUES), signal=remote.Add())
    np.testing.assert_array_equal(exposed.array, VALUES)
    found = tensor.read(framework=framework.__name__)
    assert type(found).__module__.partition(".")[0] in (framework.__name__, "jaxlib")
    np.testing.assert_array_equal(np.asarray(found), VALUES)
    tensor[:, 1:3].write(tensor_of(framework, VALUES[:, :2].copy()))
    np.testing.assert_array_equal(exposed.array[:, 1:3], VALUES[:, :2])
    tensor.scatter([2, 0], tensor_of(framework, VALUES[:2].copy()))
    np.testing.assert_array_equal(exposed.array[[2, 0]], VALUES[:2])
    batch = there.device.batch()
    batch.write(tensor, tensor_of(framework, VALUES))
    batch.prepare().start().wait()
    np.testing.assert_array_equal(exposed.array, VALUES)
    with pytest.raises(TypeError, match="float32"):
        tensor.write(tensor_of(framework, VALUES.astype(np.int32)))


def test_a_tensor_is_exposed_where_it_lies(there: Pair, framework: Any) -> None:
    values = tensor_of(framework, VALUES)
    with there.host.expose(values) as exposed:
        np.testing.assert_array_equal(there.device.open(exposed.handle)[1].read(), VALUES[1])
    if framework.__name__ == "torch":
        with there.host.expose(values, rights=ALL) as exposed:
            there.device.open(exposed.handle)[1].write(np.zeros(4, np.float32))
            assert values[1].tolist() == [0, 0, 0, 0]
    else:
        with pytest.raises(ValueError, match="must not be written"):
            there.host.expose(values, rights=Rights.WRITE)


def test_a_tensor_is_a_destination(there: Pair, framework: Any) -> None:
    exposed, tensor = there.opened((3, 4))
    exposed.array[:] = VALUES
    out = tensor_of(framework, np.zeros((3, 4), np.float32))
    if framework.__name__ != "torch":
        for call in (tensor.read, tensor.start_read):
            with pytest.raises(TypeError, match="are not written"):
                call(out)
        return
    assert tensor.read(out) is out
    np.testing.assert_array_equal(out.numpy(), VALUES)
    out.zero_()
    tensor.start_read(out).wait()
    np.testing.assert_array_equal(out.numpy(), VALUES)
    out = out.t().contiguous().t()
    out.zero_()
    tensor.read(out)
    np.testing.assert_array_equal(out.numpy(), VALUES)


def test_extended_dtypes_of_pytorch(there: Pair) -> None:
    torch = pytest.importorskip("torch")
    exposed, tensor = there.opened(4, "bfloat16")
    tensor.write(torch.tensor([1.5, 2.5, -1.0, 0.0], dtype=torch.bfloat16))
    assert exposed.array.astype(np.float32).tolist() == [1.5, 2.5, -1.0, 0.0]
    assert tensor.read(framework="torch").dtype == torch.bfloat16
    out = torch.zeros(4, dtype=torch.bfloat16)
    assert tensor.read(out).tolist() == [1.5, 2.5, -1.0, 0.0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_rows_and_channels_give_tensors_of_a_framework(
    there: Pair, framework: Any, dtype: str
) -> None:
    pytest.importorskip("ml_dtypes")
    name = framework.__name__
    types = importlib.import_module("jax.numpy") if name == "jax" else framework
    if not hasattr(types, dtype):
        pytest.skip(f"{name} has no {dtype}")
    exposed, tensor = there.opened((3, 4), dtype)
    exposed.array[...] = VALUES.astype(exposed.array.dtype)
    wanted = exposed.array[[2, 0]].astype(np.float32)
    asynchronous = asyncio.run(tensor.gather_async([2, 0], framework=name))
    for found in (tensor.gather([2, 0], framework=name), asynchronous):
        assert type(found).__module__.partition(".")[0] in (name, "jaxlib")
        np.testing.assert_array_equal(numbers(found), wanted)
    for shape in ((3, 4), (None, 4)):
        spec = TensorSpec(shape, dtype)
        with (
            remote.receiver(there.host, "c", spec, depth=1) as receiver,
            remote.sender(there.device, "c") as sender,
        ):
            for turn in range(3):  # the slot comes back with the tensor
                sender.put(exposed.array * turn, timeout=PATIENCE)
                found = receiver.get(framework=name, timeout=PATIENCE)
                np.testing.assert_array_equal(numbers(found), exposed.array * turn)
                del found
            with pytest.raises(ValueError, match="framework is one of"):
                receiver.get(framework="keras", timeout=0.0)  # type: ignore[arg-type]


def numbers(tensor: Any) -> Any:
    """In float32, which all frameworks have in common with NumPy."""
    if type(tensor).__module__.startswith("torch"):
        return tensor.float().numpy()
    return np.asarray(tensor).astype(np.float32)


def test_a_framework_that_lacks_the_type_takes_nothing(there: Pair) -> None:
    pytest.importorskip("torch")
    spec = TensorSpec((4,), "float8_e4m3b11fnuz")
    with (
        remote.receiver(there.host, "c", spec) as receiver,
        remote.sender(there.device, "c") as sender,
    ):
        sender.put(np.arange(4).astype(receiver.spec.numpy_dtype))
        with pytest.raises(ValueError, match="torch has no dtype float8"):
            receiver.get(framework="torch", timeout=PATIENCE)
        assert receiver.get(timeout=PATIENCE).astype(int).tolist() == [0, 1, 2, 3]


def test_memory_of_the_owner_is_a_tensor(there: Pair) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    exposed, tensor = there.opened((2, 3), "bfloat16")
    own = exposed.as_torch()
    assert own.dtype == torch.bfloat16
    tensor.write(torch.full((2, 3), 1.5, dtype=torch.bfloat16))
    assert own.float().tolist() == [[1.5] * 3] * 2
    own[1] = 2
    assert tensor[1].read().astype(np.float32).tolist() == [2] * 3
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    with there.host.expose(fixed) as reading, pytest.raises(ValueError, match="must not be"):
        reading.as_torch()
