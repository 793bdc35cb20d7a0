# SPDX-License-Identifier: Apache-2.0
"""Objects as bytes, without code in them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.horovod import trees

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
)
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text())
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)


@given(TREES)
def test_there_and_back(tree: Any) -> None:
    found = trees.decode(trees.encode(tree))
    assert found == tree
    assert type(found) is type(tree)


def test_arrays_and_kinds_of_containers() -> None:
    tree = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "b": {1, 2}, "c": np.float32(1.5)}
    found = trees.decode(trees.encode(OrderedDict(tree)))
    assert type(found) is OrderedDict
    np.testing.assert_array_equal(found["a"], tree["a"])
    assert found["a"].dtype == np.int16
    assert (found["b"], type(found["c"]), found["c"]) == ({1, 2}, np.float32, 1.5)


@pytest.mark.parametrize("leaf", [object(), len, np.array([None])])
def test_what_cannot_travel_is_named(leaf: object) -> None:
    with pytest.raises(TypeError, match=r"the object\['a'\]\[1\] is a .* cannot travel"):
        trees.encode({"a": [1, leaf]})


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def failing(leaf: Any) -> Any:
    raise RuntimeError(f"no array of {leaf}")


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"a": ["good", "\ud800"]}, r"the object\['a'\]\[1\] cannot travel: .*surrogates"),
        ({"a": {"\ud800": 1}}, r"the object\['a'\] cannot travel: .*surrogates"),
        ({"a": [1, ...]}, r"the object\['a'\]\[1\] cannot travel: RuntimeError: no array of Ell"),
        (endless(), "the object cannot travel: RecursionError"),
    ],
)
def test_whatever_fails_is_a_type_error(tree: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words) as caught:
        trees.encode(tree, failing)
    assert str(caught.value).encode()  # it is sent to others
