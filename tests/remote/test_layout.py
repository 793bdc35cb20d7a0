# SPDX-License-Identifier: Apache-2.0
"""Parts of tensors are where NumPy has them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.remote import layout
from tensorwire.remote.layout import Layout, first_overlap

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def indexed(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Any]]:
    """A shape, and indices that are taken one after the other."""
    shape = draw(SHAPES)
    indices: list[Any] = []
    array = np.empty(shape)
    for _ in range(draw(st.integers(0, 3))):
        index: list[Any] = []
        for extent in array.shape[: draw(st.integers(0, array.ndim))]:
            kind = draw(st.integers(0, 2))
            if kind == 0 and extent:
                index.append(draw(st.integers(-extent, extent - 1)))
            else:
                ends = st.none() | st.integers(-7, 7)
                index.append(slice(draw(ends), draw(ends), draw(st.none() | st.integers(1, 3))))
        if draw(st.booleans()):
            index.insert(draw(st.integers(0, len(index))), Ellipsis)
        try:
            part = array[tuple(index)]
        except IndexError:  # an integer has found an axis of another place
            continue
        if isinstance(part, np.ndarray):
            array = part
            indices.append(tuple(index))
    return shape, indices


@given(indexed())
def test_a_part_is_what_numpy_has(given_: tuple[tuple[int, ...], list[Any]]) -> None:
    shape, indices = given_
    array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    found = Layout.whole(shape, 4)
    memory = array.tobytes()
    for index in indices:
        array, found = array[index], found.part(index)
    assert found.shape == array.shape
    assert found.nbytes == array.nbytes
    assert found.is_dense == (array.flags.c_contiguous or array.size == 0)
    assert found.reach <= max(len(memory), found.offset)
    moved = bytearray(array.nbytes)
    for _, _, offset, local, length, stride, local_stride, count in found.rows(0, 1, 0).tolist():
        for turn in range(count):
            at, to = offset + turn * stride, local + turn * local_stride
            moved[to : to + length] = memory[at : at + length]
    assert moved == array.tobytes()


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (3, IndexError),
        (-4, IndexError),
        ((0, 0, 0), IndexError),
        ((..., ...), IndexError),
        (slice(None, None, -1), ValueError),
        (slice(None, None, 0), ValueError),
        (True, TypeError),
        (1.0, TypeError),
        ([0, 1], TypeError),
        (None, TypeError),
        (np.array([True, False, True]), TypeError),
    ],
)
def test_an_index_that_is_wrong(index: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Layout.whole((3, 2), 4).part(index)


def test_columns_of_a_matrix_are_one_row() -> None:
    assert len(Layout.whole((100_000, 64), 4).part((slice(None), slice(0, 8))).rows(0, 1, 0)) == 1


ROWS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 4), st.integers(1, 12), st.integers(1, 5)),
    max_size=6,
)


@given(ROWS)
def test_runs_that_overlap_are_found(rows: list[tuple[int, int, int, int]]) -> None:
    runs = sorted(
        (start + turn * stride, start + turn * stride + length)
        for start, length, stride, count in rows
        for turn in range(count)
    )
    overlap = any(one[1] > other[0] for one, other in pairwise(runs))
    columns = np.array(rows, np.uint64).reshape(-1, 4).T
    assert (first_overlap(*columns) is not None) == overlap


def test_the_columns_are_those_of_the_core() -> None:
    assert layout.COUNT == layout.COLUMNS - 1
