# SPDX-License-Identifier: Apache-2.0
"""Tensors of this process as sources and destinations of transfers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tensorwire.tensors import dtypes, frameworks

Array = npt.NDArray[Any]

BUFFERS: Final = "biufc"
"""Kinds of dtypes whose arrays have the buffer protocol."""


def memory(array: Array) -> Any:
    """Of an array in C order, for the core."""
    return array if array.dtype.kind in BUFFERS else frameworks.raw(array)


def destination(out: Any, dtype: np.dtype[Any]) -> Array:
    """The memory of a tensor that may be written. TypeError."""
    host = frameworks.as_host(out)
    if host is None:
        raise TypeError(f"a {type(out).__name__} is no tensor to read into")
    if host.framework in (frameworks.TENSORFLOW, frameworks.JAX):
        name = frameworks.NAMES[host.framework]
        raise TypeError(f"tensors of {name} are not written: read(framework={name!r}) makes one")
    if host.copied:
        raise TypeError(f"a copy of out would be read into: {host.copied}")
    return _as(host, dtype)


def source(value: Any, dtype: np.dtype[Any]) -> Array:
    """The elements of a tensor of any framework. TypeError."""
    host = frameworks.as_host(value)
    if host is None:
        raise TypeError(f"a {type(value).__name__} is no tensor")
    return _as(host, dtype)


def _as(host: frameworks.HostTensor, dtype: np.dtype[Any]) -> Array:
    if host.dtype == dtypes.name_of(dtype) and host.array.dtype != dtype:
        return host.array.view(dtype)  # NumPy has no such type itself
    return host.array
