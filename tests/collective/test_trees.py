# SPDX-License-Identifier: Apache-2.0
"""Operations on trees of arrays, and on arrays of other frameworks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from tests.collective.ranks import LIMIT_SECONDS, results

from tensorwire.collective import DisagreementError, Group, join
from tensorwire.collective.coalescing import _ALONE as ALONE


class Layer(NamedTuple):
    weight: Any
    bias: Any


def tree_of(rank: int) -> dict[str, Any]:
    """Two types, packs of small arrays, one that goes alone, and one that is not contiguous."""
    value = np.float32(rank + 1)
    return {
        "layers": [Layer(np.full((3, 4), value), np.full(4, value)) for _ in range(3)],
        "steps": (np.full((), rank + 1, np.int64), None),
        "large": np.full(ALONE // 4, value),
        "strided": np.full((6, 4), value)[::2, 1:],
        "half": np.full(5, value).astype(ml_dtypes.bfloat16),
        "scalar": value,
        "none": np.empty((0, 3), np.float32),
    }


def leaves(tree: Any) -> list[Any]:
    if tree is None:
        return []
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in leaves(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree]


def values(tree: Any) -> set[float]:
    return {float(value) for leaf in leaves(tree) for value in np.asarray(leaf).reshape(-1)}


def numpy_trees(group: Group) -> None:
    rank = group.rank
    tree = tree_of(rank)
    found = group.all_reduce(tree)
    assert values(found) == {3}
    assert list(found) == list(tree)
    assert isinstance(found["layers"][0], Layer)
    assert found["steps"][1] is None
    # In place, but for the scalar of NumPy, which cannot be written.
    for mine, theirs in zip(leaves(tree), leaves(found), strict=True):
        assert mine is theirs or isinstance(mine, np.float32)
    assert values(group.reduce(tree_of(rank), root=1)) == ({3} if rank == 1 else {1})
    assert values(group.broadcast(tree_of(rank), root=1)) == {2}
    gathered = group.all_gather(tree_of(rank))
    assert gathered["layers"][2].weight.shape == (2, 3, 4)
    assert values([leaf[0] for leaf in leaves(gathered)]) == {1}
    assert values([leaf[1] for leaf in leaves(gathered)]) == {2}
    assert (group.gather(tree_of(rank), root=1) is None) == (rank == 0)
    shared = group.reduce_scatter([np.arange(4.0), np.arange(2)])
    assert [each.tolist() for each in shared] == [[[0, 2], [0]], [[4, 6], [2]]][rank]
    rows = group.all_to_all([np.array([0, 1]) + 10 * rank])
    assert rows[0].tolist() == [rank, 10 + rank]
    into: list[Any] = [np.empty(2), (np.empty((), np.int32),)]
    given = [np.arange(4.0).reshape(2, 2), (np.arange(2, dtype=np.int32),)]
    got = group.scatter(into, given if rank == 1 else None, root=1)
    assert got[0] is into[0]
    assert got[0].tolist() == [[0, 1], [2, 3]][rank]
    assert got[1][0] == rank
    if rank == 0:
        group.send([np.ones(3), np.arange(2)], 1)
    else:
        first, second = group.receive([np.zeros(3), np.zeros(2, np.int64)], 0)
        assert (first.tolist(), second.tolist()) == ([1, 1, 1], [0, 1])

    # Filled in another order by each rank, and the order stays.
    pairs = [("a", np.full(2, 1.0 + rank)), ("b", np.full(3, 10.0 + rank))]
    ordered = OrderedDict(reversed(pairs) if rank else pairs)
    summed = group.all_reduce(ordered, "max")
    assert type(summed) is OrderedDict
    assert list(summed) == (["b", "a"] if rank else ["a", "b"])
    assert (summed["a"].tolist(), summed["b"].tolist()) == ([2, 2], [11, 11, 11])
    assert group.all_reduce({}) == {}
    tied = np.full(ALONE, rank + 1.0)
    assert values(group.all_reduce([tied, {"again": tied}])) == {3}

    # Small ones of one type were one operation.
    before = group.statistics()["all_reduce"]
    group.all_reduce([np.ones(10, np.float32) for _ in range(50)])
    after = group.statistics()["all_reduce"]
    assert sum(way["operations"] for way in after.values()) == 1 + sum(
        way["operations"] for way in before.values()
    )

    works = [group.all_reduce({"a": np.full(3, rank + i)}, async_op=True) for i in range(3)]
    assert [work.wait()["a"].tolist() for work in works] == [[2 * i + 1] * 3 for i in range(3)]

    async def gather() -> Any:
        return await group.all_reduce([np.ones(2), np.ones(ALONE)], "average", async_op=True)

    assert values(asyncio.run(gather())) == {1}


def test_trees_of_numpy(tmp_path: Path) -> None:
    assert results(numpy_trees, tmp_path, 2) == [None, None]


def refusals(group: Group) -> None:
    """They reach nobody: the group goes on."""
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    endless: list[Any] = []
    endless.append(endless)
    for tree, kind, words in (
        ({"a": [np.zeros(2), 1.5]}, TypeError, r"tree\['a'\]\[1\] is a float"),
        ([np.zeros(2, complex)], TypeError, "complex128 have no collectives"),
        ([np.array(["text"])], TypeError, r"tree\[0\]: elements are text"),
        ([frozen], ValueError, r"tree\[0\] is read-only"),
        (endless, ValueError, "holding itself"),
    ):
        with pytest.raises(kind, match=words):
            group.all_reduce(tree)
    with pytest.raises(TypeError, match="out is for arrays of NumPy"):
        group.all_reduce([np.zeros(2)], out=np.zeros(2))
    assert group.all_reduce([np.ones(1)])[0] == group.size


def test_what_is_wrong_by_itself(tmp_path: Path) -> None:
    assert results(refusals, tmp_path, 2) == [None, None]


def differing(group: Group) -> str:
    """Of the same bytes in all, so that only their looks tell them apart."""
    shapes = ((2, 3), (3, 2))[group.rank == 2]
    with pytest.raises(DisagreementError) as raised:
        group.all_reduce({"a": np.zeros(shapes[0]), "b": np.zeros(shapes[1])})
    return str(raised.value)


def test_trees_that_differ(tmp_path: Path) -> None:
    for found in results(differing, tmp_path, 3):
        assert "rank 0 called all_reduce(sum) of 2 arrays: tree['a'] float64[2]" in found
        assert "rank 2 called all_reduce(sum) of 2 arrays: tree['a'] float64[3]" in found


def tree_and_array(group: Group) -> None:
    array = np.zeros(4)
    with pytest.raises(DisagreementError):
        group.all_reduce(array if group.rank == 0 else [array])


def test_a_tree_and_an_array(tmp_path: Path) -> None:
    assert results(tree_and_array, tmp_path, 2) == [None, None]


def torch_arrays(group: Group) -> None:
    torch = import_module("torch")
    rank = group.rank
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        tensor = torch.full((2, 3), rank + 1).to(dtype)
        found = group.all_reduce(tensor, "max")
        assert found is tensor
        assert torch.equal(tensor, torch.full((2, 3), 2).to(dtype))
    parameter = torch.nn.Parameter(torch.full((4, 2), rank + 1.0))
    tree = {"w": parameter, "t": torch.full((2, 3), float(rank)).t(), "n": np.full(2, rank)}
    found = group.all_reduce(tree)
    assert found["w"] is parameter
    assert (parameter == 3).all()
    assert (tree["t"] == 1).all()
    assert (tree["n"] == 1).all()
    gathered = group.all_gather(torch.full((2,), rank + 1.0, dtype=torch.bfloat16))
    assert gathered.dtype == torch.bfloat16
    assert gathered.tolist() == [[1, 1], [2, 2]]
    received = group.broadcast(torch.full((3,), float(rank)), root=1)
    assert received.tolist() == [1, 1, 1]


def jax_arrays(group: Group) -> None:
    jax = import_module("jax")
    np_like = jax.numpy
    rank = group.rank
    tree = {
        "w": np_like.full((4, 2), rank + 1.0),
        "h": np_like.full(3, rank + 1.0, np_like.bfloat16),
        "large": np_like.full(ALONE, rank + 1.0),
    }
    found = group.all_reduce(tree, "average")
    assert values(found) == {1.5}
    assert values(tree) == {rank + 1}
    for name, array in tree.items():
        assert isinstance(found[name], jax.Array)
        assert found[name].dtype == array.dtype
        assert found[name].devices() == array.devices()
    assert values(group.broadcast(tree, root=1)) == {2}
    assert values(group.reduce(tree, root=1)) == ({3} if rank == 1 else {1})
    gathered = group.all_gather(np_like.arange(2) + 10 * rank)
    assert isinstance(gathered, jax.Array)
    assert gathered.tolist() == [[0, 1], [10, 11]]

    async def step() -> Any:
        return await group.all_reduce(tree, async_op=True)

    assert values(asyncio.run(step())) == {3}


def tensorflow_arrays(group: Group) -> None:
    tensorflow = import_module("tensorflow")
    rank = group.rank
    variable = tensorflow.Variable(tensorflow.fill((2, 2), rank + 1.0))
    constant = tensorflow.fill((3,), rank + 1.0)
    half = tensorflow.cast(constant, tensorflow.bfloat16)
    found = group.all_reduce([variable, constant, half])
    assert found[0] is variable
    assert (variable.numpy() == 3).all()
    assert (constant.numpy() == rank + 1).all()
    assert (found[1].numpy() == 3).all()
    assert found[2].dtype == tensorflow.bfloat16
    assert values([found[2]]) == {3}
    assert group.all_gather(constant).numpy().tolist() == [[1, 1, 1], [2, 2, 2]]


def what_they_move(group: Group, make: Callable[[Any], Any]) -> None:
    """Operations that give arrays of other shapes, or into others. ``make``: of a list."""
    rank, other = group.rank, 1 - group.rank
    kind, dtype = type(make([0.0])), make([0.0]).dtype
    table = make([[rank, rank + 1.0], [rank + 2.0, rank + 3.0]])

    def check(found: Any, *expected: Any) -> None:
        """One for each rank."""
        assert isinstance(found, kind)
        assert found.dtype == dtype
        assert np.asarray(found).tolist() == expected[rank]

    gathered = group.gather(make([rank + 1.0]), root=1)
    if rank == 1:
        check(gathered, None, [[1], [2]])
    else:
        assert gathered is None
    check(group.scatter(make([8.0, 8.0]), None if rank else table), [0, 1], [2, 3])
    check(group.reduce_scatter(table), [[1, 3]], [[5, 7]])
    check(group.all_to_all(table), [[0, 1], [1, 2]], [[2, 3], [3, 4]])
    group.send(table, other)
    check(group.receive(make([[8.0, 8.0]] * 2), other), [[1, 2], [3, 4]], [[0, 1], [2, 3]])
    check(group.reduce_scatter({"t": table}, async_op=True).wait()["t"], [[1, 3]], [[5, 7]])


def maker(framework: str) -> Callable[[Any], Any]:
    module = import_module(framework)
    make: Callable[[Any], Any] = {
        "torch": lambda: module.tensor,
        "jax": lambda: module.numpy.asarray,
        "tensorflow": lambda: module.constant,
    }[framework]()
    return make


PROGRAMS = {"torch": torch_arrays, "jax": jax_arrays, "tensorflow": tensorflow_arrays}


@pytest.mark.parametrize("framework", PROGRAMS)
def test_arrays_of(framework: str, tmp_path: Path) -> None:
    """Ranks are threads here: frameworks are imported once, if another test has not done that."""
    pytest.importorskip(framework)

    def run(rank: int) -> None:
        with join(tmp_path, rank, 2, timeout=LIMIT_SECONDS) as group:
            PROGRAMS[framework](group)
            what_they_move(group, maker(framework))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [None, None]
