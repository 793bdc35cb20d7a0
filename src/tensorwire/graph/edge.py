# SPDX-License-Identifier: Apache-2.0
"""A tensor that crosses machines in each step of a program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from tensorwire.tensors import MAX_RANK, dtypes
from tensorwire.tensors.errors import DecodeError

Seen = Literal["inferred", "traced", "varies"]
Per = Literal["step", "iteration"]
Way = Literal["placed", "described", "stock"]

MAX_BYTES: Final = (1 << 63) - 1
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
_Extent = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
_Shape = Annotated[tuple[_Extent | None, ...], msgspec.Meta(max_length=MAX_RANK)]
_Axis = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANK)]
_Order = Annotated[tuple[_Axis, ...], msgspec.Meta(max_length=MAX_RANK)]


class Edge(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one machine sends another one: once in a step, or each time a loop comes by."""

    name: _Name
    """Of the tensor in its program. ``^name``: no data, only that ``name`` is done."""
    source: _Name
    target: _Name
    shape: _Shape | None
    """None for an extent that is not known, or for a shape of which nothing is."""
    dtype: _Name
    """As on the wire (``float32``), or ``string``, ``variant``, ``resource`` and what else has no
    memory that could be sent."""
    seen: Seen = "inferred"
    """Whether the shape was inferred; was the same in all steps that were traced; or varied."""
    per: Per = "step"
    round: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    """What a machine sends another one in the same round is ready at the same time, before it
    takes anything back. 0 where that is not known."""
    order: _Order | None = None
    """Of what is placed: the axes from the largest stride to the smallest; None for C order."""

    @property
    def nbytes(self) -> int | None:
        """Of one tensor; None where the shape is not known, or the type is none that travels."""
        if self.shape is None or None in self.shape:
            return None
        try:
            return math.prod(n for n in self.shape if n is not None) * dtypes.itemsize_of(
                self.dtype
            )
        except DecodeError:
            return None

    @property
    def way(self) -> Way:
        """How a plan has it travel. ``placed``: into memory that the receiver has ready, since the
        shape never changes. ``described``: with a header that says what it is. ``stock``: as the
        framework has it, and in no plan: types without memory, and what loops send."""
        try:
            dtypes.itemsize_of(self.dtype)
        except DecodeError:
            return "stock"
        if self.per == "iteration":
            return "stock"
        return "described" if self.nbytes is None or self.seen == "varies" else "placed"


def merged(name: str, found: Sequence[Edge]) -> Edge:
    """One edge of the same tensor as several steps have shown it: extents that differ are None."""
    first = found[0]
    shapes = [edge.shape for edge in found]
    shape = first.shape
    for other in shapes[1:]:
        if shape is None or other is None or len(shape) != len(other):
            shape = None
        else:
            shape = tuple(a if a == b else None for a, b in zip(shape, other, strict=True))
    ways = {edge.seen for edge in found}
    same = all(other == first.shape for other in shapes)
    seen: Seen = "varies" if "varies" in ways or not same else "traced"
    if same and ways == {"inferred"}:
        seen = "inferred"
    per: Per = "iteration" if any(edge.per == "iteration" for edge in found) else "step"
    return Edge(name, first.source, first.target, shape, first.dtype, seen, per, first.round)
