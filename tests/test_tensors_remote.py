# SPDX-License-Identifier: Apache-2.0
"""Tensors of frameworks as sources and destinations of remote memory."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.remote.pairs import ALL, Pair, pair

from tensorwire import remote
from tensorwire.remote import Rights

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
