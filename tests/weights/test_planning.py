# SPDX-License-Identifier: Apache-2.0
"""Plans move every element once, to its place, against a model that moves real arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.weights import PlanError, Shard, plan
from tensorwire.weights.planning import Layout, digest

Shape = tuple[int, ...]


def grid(shape: Shape, cuts: Sequence[int]) -> list[Shard]:
    """A tensor cut along each axis into so many pieces, as even as they can be."""
    axes = []
    for extent, count in zip(shape, cuts, strict=True):
        edges = [extent * i // count for i in range(count + 1)]
        axes.append(list(itertools.pairwise(edges)))
    return [
        Shard(tuple(low for low, _ in box), tuple(high - low for low, high in box), shape, "int32")
        for box in itertools.product(*axes)
    ]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[Shape, list[Shard], list[Shard]]:
    """A shape, and two ways in which processes hold it."""
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
    cuts = st.tuples(*(st.integers(1, 4) for _ in shape))
    return shape, grid(shape, draw(cuts)), grid(shape, draw(cuts))


def moved(sources: list[Layout], target: Layout, world: dict[str, Any], turn: int) -> int:
    """Fills a target by its plan, and compares it; the bytes that moved."""
    made = plan(sources, target, turn=turn)
    for name, pieces in target.items():
        memory = [np.full(shard.shape, -1, np.int32) for shard in pieces]
        written = [np.zeros(shard.shape, np.int32) for shard in pieces]
        for part in made.parts:
            if part.name == name:
                shard = sources[part.source][name][part.piece]
                held = world[name][tuple(map(slice, shard.start, _ends(shard)))]
                assert part.nbytes == held[part.box()].nbytes
                memory[part.to_piece][part.to_box()] = held[part.box()]
                written[part.to_piece][part.to_box()] += 1
        for shard, have, times in zip(pieces, memory, written, strict=True):
            assert (have == world[name][tuple(map(slice, shard.start, _ends(shard)))]).all()
            assert (times == 1).all()
    return made.nbytes


def _ends(shard: Shard) -> Shape:
    return tuple(at + extent for at, extent in zip(shard.start, shard.shape, strict=True))


@given(tensors(), st.integers(0, 3))
def test_every_element_moves_once(
    tensor: tuple[Shape, list[Shard], list[Shard]], turn: int
) -> None:
    shape, held, wanted = tensor
    world = {"w": np.arange(math.prod(shape), dtype=np.int32).reshape(shape)}
    sources: list[Layout] = [{"w": [shard]} for shard in held]
    sources += sources[:2]  # copies, which must not be read twice
    total = sum(moved(sources, {"w": [shard]}, world, turn) for shard in wanted)
    assert total == world["w"].nbytes
    # A process may hold several boxes of a tensor, at either end.
    assert moved([{"w": held}], {"w": wanted}, world, turn) == world["w"].nbytes


@given(st.data(), st.integers(0, 5))
def test_boxes_that_overlap(data: st.DataObject, turn: int) -> None:
    shape = (6, 5)
    boxes = [Shard.whole(shape, "int32")]
    for _ in range(data.draw(st.integers(0, 4))):
        low = tuple(data.draw(st.integers(0, extent - 1)) for extent in shape)
        size = tuple(
            data.draw(st.integers(1, extent - at)) for extent, at in zip(shape, low, strict=True)
        )
        boxes.insert(0, Shard(low, size, shape, "int32"))
    world = {"w": np.arange(30, dtype=np.int32).reshape(shape)}
    sources: list[Layout] = [{"w": [box]} for box in boxes]
    assert moved(sources, {"w": [Shard.whole(shape, "int32")]}, world, turn) == 120


def test_copies_are_read_in_turn() -> None:
    sources: list[Layout] = [{"w": [Shard.whole((4,), "float32")]} for _ in range(3)]
    target: Layout = {"w": [Shard.whole((4,), "float32")]}
    assert [plan(sources, target, turn=turn).parts[0].source for turn in range(4)] == [0, 1, 2, 0]


WRONG: list[tuple[Layout, str]] = [
    ({}, "no publisher has it"),
    ({"w": [Shard.whole((4, 3), "float64")]}, r"published as float64\[4, 3\], wanted as float32"),
    ({"w": [Shard.whole((4, 4), "float32")]}, r"published as float32\[4, 4\], wanted as float32"),
    ({"w": [Shard((0, 0), (3, 3), (4, 3), "float32")]}, r"no publisher has its elements at \(3, 0"),
]


@pytest.mark.parametrize(("held", "why"), WRONG)
def test_layouts_that_do_not_fit(held: Layout, why: str) -> None:
    with pytest.raises(PlanError, match=f"w: {why}"):
        plan([held], {"w": [Shard.whole((4, 3), "float32")]})


def test_publishers_that_do_not_agree() -> None:
    held: list[Layout] = [{"w": [Shard.whole((4,), kind)]} for kind in ("float32", "float16")]
    with pytest.raises(PlanError, match=r"w: publishers hold float32\[4\] and float16\[4\]"):
        plan(held, {"w": [Shard.whole((4,), "float32")]})


@pytest.mark.parametrize(
    "box",
    [
        ((0,), (1, 1), (2, 2), "float32"),
        ((1, 0), (2, 1), (2, 2), "float32"),
        ((-1, 0), (1, 1), (2, 2), "float32"),
        ((0,) * 40, (1,) * 40, (1,) * 40, "float32"),
        ((0, 0), (1, 1), (1 << 40, 1 << 40), "float32"),
        ((0,), (1,), (1,), "object"),
    ],
)
def test_a_shard_that_is_none(box: Any) -> None:
    with pytest.raises(ValueError, match=r"shard|tensor|dtype"):
        Shard(*box)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(box), type=Shard)


def test_a_digest_tells_layouts_apart() -> None:
    layouts: list[Layout] = [
        {"w": [Shard.whole((4,), "float32")]},
        {"v": [Shard.whole((4,), "float32")]},
        {"w": [Shard.whole((4,), "int32")]},
        {"w": [Shard((0,), (4,), (8,), "float32")]},
        {"w": [Shard((4,), (4,), (8,), "float32")]},
    ]
    assert len({digest(layout) for layout in layouts}) == len(layouts)
    one, other = {"a": layouts[0]["w"], "b": []}, {"b": [], "a": layouts[0]["w"]}
    assert digest(one) == digest(other)


def seventy_billion() -> dict[str, Shape]:
    shapes: dict[str, Shape] = {"embed": (128256, 8192), "head": (128256, 8192)}
    for layer in range(80):
        for kind, shape in {
            "q": (8192, 8192),
            "k": (1024, 8192),
            "v": (1024, 8192),
            "o": (8192, 8192),
            "gate": (28672, 8192),
            "up": (28672, 8192),
            "down": (8192, 28672),
            "norm": (8192,),
        }.items():
            shapes[f"{layer}.{kind}"] = shape
    return shapes


def layout(
    shapes: dict[str, Shape], rank: int, size: int, axis: Callable[[str], int | None]
) -> Layout:
    def held(name: str, shape: Shape) -> Shard:
        at = axis(name)
        if at is None:
            return Shard.whole(shape, "bfloat16")
        cuts = [size if i == at else 1 for i in range(len(shape))]
        box = grid(shape, cuts)[rank]
        return Shard(box.start, box.shape, shape, "bfloat16")

    return {name: [held(name, shape)] for name, shape in shapes.items()}


def test_sixteen_ways_of_fsdp_to_eight_of_tensor_parallelism() -> None:
    """Of a model of 70 billion parameters: what all of them read is the model once, but for what
    each of them has all of."""
    shapes = seventy_billion()
    rows_or_columns = {"o": 1, "down": 1, "norm": None}
    sources = [layout(shapes, rank, 16, lambda _: 0) for rank in range(16)]
    total = 0
    for rank in range(8):
        target = layout(shapes, rank, 8, lambda name: rows_or_columns.get(name.split(".")[-1], 0))
        made = plan(sources, target, turn=rank)
        assert made.nbytes == sum(shard.nbytes for every in target.values() for shard in every)
        total += made.nbytes
    norms = 80 * 8192 * 2
    assert total == 2 * sum(math.prod(shape) for shape in shapes.values()) + 7 * norms
