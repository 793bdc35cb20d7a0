# SPDX-License-Identifier: Apache-2.0
"""Which slices move from M publishers to a subscriber. Pure: no I/O, no framework, no memory.

A process holds boxes of global tensors. What a subscriber lacks of each of its boxes is cut out of
the publishers' boxes, so that every element moves once: the bytes that move are exactly the
intersections, whatever the two layouts are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from tensorwire.tensors import MAX_RANK, dtypes

__all__ = ["Layout", "Part", "Plan", "PlanError", "Shard", "digest", "plan"]

_MAX_EXTENT: Final = (1 << 63) - 1

Index = tuple[int, ...]


class PlanError(ValueError):
    """Layouts do not fit each other; the text names the tensor. Nothing has moved."""


class Shard(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A box of a global tensor that one process holds, in C order.

    start, shape: of the box, in elements of the global tensor. dtype: a name as NumPy or ml_dtypes
    has it. ``ValueError`` for a box that does not lie in the tensor.
    """

    start: Index
    shape: Index
    global_shape: Index
    dtype: str

    def __post_init__(self) -> None:
        rank = len(self.global_shape)
        if not len(self.start) == len(self.shape) == rank:
            raise ValueError(f"a shard of {rank} axes starts at {self.start}, shape {self.shape}")
        if rank > MAX_RANK:
            raise ValueError(f"a tensor of {rank} axes: at most {MAX_RANK} can travel")
        for at, extent, whole in zip(self.start, self.shape, self.global_shape, strict=True):
            if at < 0 or extent < 0 or at + extent > whole:
                raise ValueError(
                    f"a shard of shape {self.shape} at {self.start} does not lie in a tensor of "
                    f"shape {self.global_shape}"
                )
        if math.prod(self.global_shape) * dtypes.itemsize_of(self.dtype) > _MAX_EXTENT:
            raise ValueError(f"a tensor of shape {self.global_shape} is too large")

    @classmethod
    def whole(cls, shape: Sequence[int], dtype: str) -> Shard:
        """A tensor that a process holds all of."""
        return cls((0,) * len(shape), tuple(shape), tuple(shape), dtype)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * dtypes.itemsize_of(self.dtype)


Layout = Mapping[str, Sequence[Shard]]
"""What one process holds: for the name of each tensor one box, or several that do not overlap."""


class Part(NamedTuple):
    """One slice that moves: a box of a publisher's piece, which has a place in one of the
    subscriber's. Starts are relative to the pieces."""

    source: int
    """Which publisher."""
    name: str
    piece: int
    """Which of the publisher's boxes of that tensor."""
    start: Index
    shape: Index
    to_piece: int
    to_start: Index
    nbytes: int

    def box(self) -> Any:
        """Of the publisher's piece."""
        return index_of(self.start, self.shape)

    def to_box(self) -> Any:
        """Of the subscriber's piece."""
        return index_of(self.to_start, self.shape)


class Plan(NamedTuple):
    """What one subscriber reads, publisher by publisher."""

    parts: tuple[Part, ...]
    layouts: tuple[bytes, ...]
    """The digest of each publisher's layout that the plan was made for."""

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def of(self, source: int) -> list[Part]:
        return [part for part in self.parts if part.source == source]


def plan(sources: Sequence[Layout], target: Layout, *, turn: int = 0) -> Plan:
    """The parts by which ``target`` is filled from what ``sources`` hold.

    turn: where several publishers hold the same box, subscribers with different numbers read from
    different ones.

    Raises ``PlanError``: a tensor that no publisher has, of another global shape or dtype, or whose
    elements no publisher has all of.
    """
    held = _holders(sources)
    parts: list[Part] = []
    # Layers are alike: most tensors have the boxes of another one.
    known: dict[Any, tuple[list[Cut], list[Box]]] = {}
    for number, (name, pieces) in enumerate(target.items()):
        boxes = held.get(name)
        if boxes is None:
            raise PlanError(f"{name}: no publisher has it")
        source, piece = next(iter(boxes.values()))[0]
        have = sources[source][name][piece]
        for to_piece, wanted in enumerate(pieces):
            if (have.global_shape, have.dtype) != (wanted.global_shape, wanted.dtype):
                raise PlanError(
                    f"{name}: published as {have.dtype}{list(have.global_shape)}, wanted as "
                    f"{wanted.dtype}{list(wanted.global_shape)}"
                )
            key = (wanted.start, wanted.shape, tuple(boxes))
            cuts = known.get(key)
            if cuts is None:
                cuts = known[key] = _cuts((wanted.start, wanted.shape), boxes)
            if cuts[1]:
                start, shape = cuts[1][0]
                raise PlanError(f"{name}: no publisher has its elements at {start}, shape {shape}")
            itemsize = dtypes.itemsize_of(wanted.dtype)
            for cut in cuts[0]:
                holders = boxes[cut.box]
                source, piece = holders[(turn + number) % len(holders)]
                nbytes = math.prod(cut.shape) * itemsize
                parts.append(
                    Part(source, name, piece, cut.start, cut.shape, to_piece, cut.to_start, nbytes)
                )
    return Plan(tuple(parts), tuple(digest(layout) for layout in sources))


Box = tuple[Index, Index]
"""Start and shape."""
Boxes = dict[Box, list[tuple[int, int]]]
"""Who holds each box: publisher and piece."""


def _holders(sources: Sequence[Layout]) -> dict[str, Boxes]:
    held: dict[str, Boxes] = {}
    kinds: dict[str, tuple[Index, str]] = {}
    for source, layout in enumerate(sources):
        for name, pieces in layout.items():
            boxes = held.setdefault(name, {})
            for piece, shard in enumerate(pieces):
                kind = kinds.setdefault(name, (shard.global_shape, shard.dtype))
                if kind != (shard.global_shape, shard.dtype):
                    raise PlanError(
                        f"{name}: publishers hold {kind[1]}{list(kind[0])} and "
                        f"{shard.dtype}{list(shard.global_shape)}"
                    )
                boxes.setdefault((shard.start, shard.shape), []).append((source, piece))
    return {name: boxes for name, boxes in held.items() if boxes}


class Cut(NamedTuple):
    """A part without its names: what of a publisher's box has which place in a subscriber's."""

    box: Box
    start: Index
    shape: Index
    to_start: Index


def _cuts(wanted: Box, boxes: Boxes) -> tuple[list[Cut], list[Box]]:
    """What of each box fills ``wanted``, and what is left of it."""
    found = []
    missing: list[Box] = [] if 0 in wanted[1] else [wanted]
    for box in boxes:
        if not missing:
            break
        left: list[Box] = []
        for hole in missing:
            common = _intersection(hole, box)
            if common is None:
                left.append(hole)
                continue
            start, shape = common
            found.append(Cut(box, _minus(start, box[0]), shape, _minus(start, wanted[0])))
            left += _without(hole, common)
        missing = left
    return found, missing


def _intersection(one: Box, other: Box) -> Box | None:
    start, shape = [], []
    for a, extent, b, width in zip(*one, *other, strict=True):
        low = a if a > b else b
        high = min(a + extent, b + width)
        if low >= high:
            return None
        start.append(low)
        shape.append(high - low)
    return tuple(start), tuple(shape)


def _without(box: Box, hole: Box) -> Iterator[Box]:
    """What is left of a box around a hole in it, as boxes that do not overlap."""
    start, shape = list(box[0]), list(box[1])
    for axis, (at, extent) in enumerate(zip(*hole, strict=True)):
        before, after = at - start[axis], start[axis] + shape[axis] - at - extent
        if before:
            yield tuple(start), (*shape[:axis], before, *shape[axis + 1 :])
        if after:
            yield (
                (*start[:axis], at + extent, *start[axis + 1 :]),
                (*shape[:axis], after, *shape[axis + 1 :]),
            )
        start[axis], shape[axis] = at, extent


def _minus(one: Index, other: Index) -> Index:
    return tuple(a - b for a, b in zip(one, other, strict=True))


def index_of(start: Index, shape: Index) -> Any:
    """What a box is of an array that it lies in: always a view of it."""
    return (*(slice(at, at + extent) for at, extent in zip(start, shape, strict=True)), ...)


def digest(content: Any) -> bytes:
    """32 bytes that two processes compare: of a layout, or of what they agree to move."""
    return hashlib.sha256(msgspec.msgpack.encode(content, order="deterministic")).digest()
