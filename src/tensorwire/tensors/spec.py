# SPDX-License-Identifier: Apache-2.0
"""What a tensor must look like: the check behind ``loads(like=)`` and service annotations."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwire.tensors import dtypes, frameworks


class TensorSpec:
    """A tensor's expected shape and dtype.

    ``shape``: extents, None for any extent; None for any shape. ``dtype``: anything that NumPy
    takes, a name of ml_dtypes or a framework's dtype; None for any.
    """

    __slots__ = ("_name", "shape")

    def __init__(self, shape: Sequence[int | None] | None = None, dtype: object = None) -> None:
        if shape is not None:
            shape = tuple(shape)
            for extent in shape:
                if extent is not None and (not isinstance(extent, int) or extent < 0):
                    raise ValueError(f"an extent is None or a non-negative int, not {extent!r}")
        self.shape = shape
        self._name = None if dtype is None else dtypes.name_of(dtypes.parse(dtype))

    @property
    def dtype(self) -> str | None:
        """The wire name of the dtype."""
        return self._name

    @property
    def numpy_dtype(self) -> dtypes.DType | None:
        """The same as NumPy's dtype; TypeError if it takes ml_dtypes, which is missing."""
        return None if self._name is None else dtypes.own(self._name)

    @classmethod
    def of(cls, tensor: object) -> TensorSpec | None:
        """The spec that exactly ``tensor``'s dtype and shape meet; None if it is no tensor."""
        found = frameworks.signature(tensor)
        if found is None:
            return None
        spec = cls.__new__(cls)
        spec._name, spec.shape = found
        return spec

    def objection(self, dtype: str, shape: tuple[int, ...]) -> str:
        """What is wrong with a tensor of this dtype and shape; empty if nothing is."""
        wanted = self.shape
        fits = wanted is None or (
            len(wanted) == len(shape)
            and all(want is None or want == have for want, have in zip(wanted, shape, strict=True))
        )
        if fits and self._name in (None, dtype):
            return ""
        return f"expected a tensor {self}, got {dtype}{list(shape)}"

    def check(self, obj: object) -> str:
        """What is wrong with ``obj``; empty if it is a tensor that fits."""
        try:
            found = frameworks.signature(obj)
        except TypeError as error:
            return f"expected a tensor {self}, got one that cannot travel: {error}"
        if found is None:
            return f"expected a tensor {self}, got a {type(obj).__name__}"
        return self.objection(*found)

    def __str__(self) -> str:
        if self.shape is None:
            shape = "[...]"
        else:
            extents = ("*" if extent is None else str(extent) for extent in self.shape)
            shape = f"[{', '.join(extents)}]"
        return f"{self._name or 'any dtype '}{shape}"

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape!r}, dtype={self._name!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec):
            return NotImplemented
        return (self.shape, self._name) == (other.shape, other._name)

    def __hash__(self) -> int:
        return hash((self.shape, self._name))
