# SPDX-License-Identifier: Apache-2.0
"""Arrays of any strides: operations read and write what NumPy's views are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collective.ranks import LIMIT_SECONDS

from tensorwire.collective import Group, join

Array = np.ndarray[Any, Any]
FILL = 77
RANKS = 2


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Group]]:
    """Of two ranks, which are threads."""
    folder = tmp_path_factory.mktemp("layouts")
    with ThreadPoolExecutor(RANKS) as pool:
        joined = list(pool.map(lambda rank: join(folder, rank, RANKS, timeout=LIMIT_SECONDS),
                               range(RANKS)))  # fmt: skip
        yield joined
        list(pool.map(Group.close, joined))


@dataclass(frozen=True)
class Layout:
    """How axes lie in memory, from the outermost on, and the steps of each."""

    order: tuple[int, ...]
    steps: tuple[int, ...]

    def of(self, values: Array) -> tuple[Array, Array]:
        """A view that holds these, and all of the memory in which it lies."""
        sizes = [n * abs(step) + 1 for n, step in zip(values.shape, self.steps, strict=True)]
        whole = np.full([sizes[axis] for axis in self.order], FILL, values.dtype)
        view = whole.transpose(np.argsort(self.order)) if self.order else whole
        view = view[tuple(
            slice(0, n * step, step) if step > 0 else slice(n * -step, None if n else 0, step)
            for n, step in zip(values.shape, self.steps, strict=True)
        )]  # fmt: skip
        view = view[tuple(slice(0, n) for n in values.shape)]
        assert view.shape == values.shape
        view[...] = values
        return view, whole


def layouts(axes: int) -> st.SearchStrategy[Layout]:
    return st.builds(
        Layout,
        st.permutations(range(axes)).map(tuple),
        st.tuples(*[st.sampled_from([1, 1, 2, 3, -1, -2])] * axes),
    )


OPERATIONS = ("all_reduce", "all_reduce into", "reduce", "broadcast", "all_gather", "gather",
              "scatter", "reduce_scatter", "all_to_all", "message", "many", "uneven")  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, tuple[int, ...], str, list[Layout], list[Layout]]:
    axes = draw(st.integers(1, 3))
    shape = (RANKS * draw(st.integers(0, 2)), *draw(st.tuples(*[st.integers(0, 3)] * (axes - 1))))
    kind = draw(st.sampled_from(["float32", "int16", "bool", "float64"]))
    return (
        draw(st.sampled_from(OPERATIONS)),
        shape,
        kind,
        [draw(layouts(axes)) for _ in range(RANKS)],
        [draw(layouts(axes + 1)) for _ in range(RANKS)],
    )


def operate(
    group: Group, operation: str, every: list[Array], plain: Layout, more: Layout
) -> tuple[Array, Array, Array | None]:
    """What it gives, what it should, and all of the memory in which that lies."""
    rank = group.rank
    total = (every[0] | every[1]) if every[0].dtype == bool else every[0] + every[1]
    mine, memory = plain.of(every[rank])
    half = len(mine) // RANKS
    share = slice(rank * half, (rank + 1) * half)
    if operation == "all_reduce":
        return group.all_reduce(mine), total, memory
    if operation == "many":
        group.all_reduce_many([np.ones(3, mine.dtype), mine])
        return mine, total, memory
    if operation == "all_reduce into":
        out, memory = plain.of(np.zeros_like(mine))
        return group.all_reduce(mine, out=out), total, memory
    if operation == "reduce":
        return group.reduce(mine, root=1), total if rank == 1 else every[rank], memory
    if operation == "broadcast":
        return group.broadcast(mine, root=1), every[1], memory
    if operation == "message":
        if rank == 0:
            group.send(mine, 1)
            return mine, every[0], memory
        return group.receive(mine, 0), every[0], memory
    if operation in ("all_gather", "gather"):
        out, memory = more.of(np.zeros((RANKS, *mine.shape), mine.dtype))
        if operation == "all_gather":
            return group.all_gather(mine, out=out), np.stack(every), memory
        group.gather(mine, out=out, root=1)
        return out, np.stack(every) if rank == 1 else np.zeros_like(out), memory
    if operation == "scatter":
        given, _ = more.of(np.stack(every[::-1]))
        return group.scatter(mine, given, root=0), every[1 - rank], memory
    out, memory = plain.of(np.zeros_like(mine)[:half])
    if operation == "reduce_scatter":
        return group.reduce_scatter(mine, out=out), total[share], memory
    if operation == "uneven":
        rows = [0, len(mine)]
        out, memory = plain.of(np.zeros_like(mine)[: rows[rank]])
        return group.reduce_scatter(mine, rows=rows, out=out), total[: rows[rank]], memory
    out, memory = plain.of(np.zeros_like(mine))
    expected = np.concatenate([each[share] for each in every])
    return group.all_to_all(mine, out=out), expected, memory


@given(cases(), st.integers(0, 2**32 - 1))
def test_any_strides_give_what_numpy_gives(
    groups: list[Group],
    case: tuple[str, tuple[int, ...], str, list[Layout], list[Layout]],
    seed: int,
) -> None:
    operation, shape, kind, plain, more = case
    random = np.random.default_rng(seed)
    every = [random.integers(0, 2 if kind == "bool" else 100, shape).astype(kind)
             for _ in range(RANKS)]  # fmt: skip
    with ThreadPoolExecutor(RANKS) as pool:
        ends = list(pool.map(lambda group: operate(
            group, operation, every, plain[group.rank], more[group.rank]), groups))  # fmt: skip
    for found, expected, memory in ends:
        assert np.array_equal(found, expected), operation
        assert memory is not None
        found[...] = FILL
        assert (memory == np.array(FILL).astype(kind)).all(), "what lies between was written"


def both(groups: list[Group], call: Callable[[Group], Any]) -> list[Any]:
    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(call, groups))


def test_an_output_that_overlaps_the_input(groups: list[Group]) -> None:
    def reduce(group: Group) -> Array:
        memory = np.arange(6.0)
        group.all_reduce(memory[:-1], out=memory[1:])
        return memory

    def gather(group: Group) -> Array:
        memory = np.arange(6.0) + 10 * group.rank
        group.all_gather(memory[1:4], out=memory.reshape(2, 3))
        return memory

    def gather_in_place(group: Group) -> Array:
        memory = np.full((2, 3), group.rank)
        return group.all_gather(memory[group.rank], out=memory)

    def scatter_in_place(group: Group) -> Array:
        memory = np.arange(6.0).reshape(2, 3)
        return group.reduce_scatter(memory, out=memory[group.rank : group.rank + 1])

    for found in both(groups, reduce):
        assert (found == [0, 0, 2, 4, 6, 8]).all()
    for found in both(groups, gather):
        assert (found == [1, 2, 3, 11, 12, 13]).all()
    for found in both(groups, gather_in_place):
        assert (found == [[0] * 3, [1] * 3]).all()
    assert [found.tolist() for found in both(groups, scatter_in_place)] == [
        [[0, 2, 4]],
        [[6, 8, 10]],
    ]


def test_what_cannot_be_written_is_refused(groups: list[Group]) -> None:
    window = np.lib.stride_tricks.sliding_window_view(np.zeros(6), 3, writeable=True)
    repeated = np.lib.stride_tricks.as_strided(np.zeros(1), (2, 3), (0, 8), writeable=True)
    frozen = np.zeros((2, 2))
    frozen.flags.writeable = False

    def refuse(group: Group) -> None:
        for array in (window, repeated):
            with pytest.raises(ValueError, match="lie in the same memory"):
                group.all_reduce(array)
            with pytest.raises(ValueError, match="lie in the same memory"):
                group.receive(array, 1 - group.rank)
        for call in (
            lambda: group.all_gather(frozen[0], out=frozen),
            lambda: group.scatter(frozen[0], frozen),
            lambda: group.reduce_scatter(np.zeros((4, 2)), out=frozen),
            lambda: group.all_to_all(np.zeros((2, 2)), out=frozen),
            lambda: group.receive(frozen, 1 - group.rank),
            lambda: group.receive_any(frozen),
        ):
            with pytest.raises(ValueError, match="out is read-only"):
                call()
        with pytest.raises(TypeError, match="bytes are swapped"):
            group.all_reduce(np.zeros(3, ">f4"))
        # What is only read may be all that.
        assert (group.all_gather(window) == 0).all()

    both(groups, refuse)
