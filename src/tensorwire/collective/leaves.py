# SPDX-License-Identifier: Apache-2.0
"""Arrays of any framework in operations, which know NumPy's: as views, and back."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tensorwire.collective.arrays import Array, check_writable
from tensorwire.tensors import dtypes, frameworks
from tensorwire.tensors.wire import TensorHead

_ALIGNMENT: Final = 64
"""Bytes: of memory that TensorFlow and JAX take over without a copy."""


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Memory for a result that any framework can take over."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    at = -memory.ctypes.data % _ALIGNMENT
    return memory[at : at + size].view(dtype).reshape(shape)


class Leaf:
    """An array of a tree. ``array``: its elements as NumPy's, over the same memory.

    What NumPy and PyTorch have is written in place, and so is what a variable of TensorFlow holds,
    by an assignment. Arrays of JAX and TensorFlow never change: results are new ones.
    """

    def __init__(self, tensor: object, path: str) -> None:
        """TypeError for what is no array in the memory of this host; it says where it is."""
        try:
            host = frameworks.as_host(tensor)
        except TypeError as error:
            raise TypeError(f"{path}: {error}") from error.__cause__
        if host is None:
            raise TypeError(
                f"{path} is a {type(tensor).__name__}: operations take arrays of NumPy, PyTorch, "
                "TensorFlow and JAX, and dicts, lists and tuples of them"
            )
        self.tensor: Any = tensor
        self.path = path
        self.dtype = host.dtype
        self._framework = host.framework
        array = host.array
        self.array = array.view(dtypes.own(host.dtype)) if host.dtype in dtypes.EXTENDED else array
        scalar = isinstance(tensor, np.generic)
        self.in_place = host.framework in (frameworks.NUMPY, frameworks.TORCH) and not scalar

    def check_writable(self) -> None:
        if self.in_place:
            check_writable(self.array, self.path)

    def room(self, gives: bool, gets: bool) -> Array:
        """An array that an operation may write: the leaf's own, or with its elements, which an
        operation needs that ``gives`` them. ``gets``: what it writes is the leaf's."""
        own = self.array
        if own.flags.writeable and (self.in_place or not gets):
            return own
        made = _aligned(own.shape, own.dtype)
        if gives:
            made[...] = own
        return made

    def changed(self, written: Array) -> Any:
        """The tensor with these elements: itself where that can be written."""
        if self.in_place:
            if not np.may_share_memory(written, self.array):
                self.array[...] = written
            return self.tensor
        made = self.made(written)
        if hasattr(self.tensor, "assign"):
            self.tensor.assign(made)
            return self.tensor
        return made

    def made(self, array: Array) -> Any:
        """An array of this one's framework, over the memory of ``array``, which is in C order."""
        if isinstance(self.tensor, np.generic):
            return array[()]
        if self._framework == frameworks.NUMPY:
            return array
        head = TensorHead(self.dtype, array.shape, array.nbytes, None, self._framework)
        name = frameworks.NAMES[self._framework]
        made: Any = frameworks.from_memory(head, frameworks.raw(array), name)[0]
        if self._framework == frameworks.JAX:
            import jax

            made = jax.device_put(made, next(iter(self.tensor.devices())))
        return made
