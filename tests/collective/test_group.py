# SPDX-License-Identifier: Apache-2.0
"""Groups of processes: what each operation gives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from itertools import product
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from tests.collective.ranks import LIMIT_SECONDS, on_a_host, results

import tensorwire as tw
import tensorwire.collective.group as group_module
from tensorwire.collective import (
    Group,
    GroupError,
    PrefixStore,
    Store,
    join,
)

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def numbers(name: str, rank: int, count: int) -> Any:
    values = (np.arange(count) * (rank + 3)) % 7 + 1
    return values.astype(np.float32).astype(dtype_of(name))


REFERENCE: dict[str, Callable[[Any], Any]] = {
    "sum": lambda all_: all_.sum(0),
    "product": lambda all_: all_.prod(0),
    "min": lambda all_: all_.min(0),
    "max": lambda all_: all_.max(0),
    "bit_and": lambda all_: np.bitwise_and.reduce(all_, 0),
    "bit_or": lambda all_: np.bitwise_or.reduce(all_, 0),
    "bit_xor": lambda all_: np.bitwise_xor.reduce(all_, 0),
}


def expected_of(op: str, name: str, count: int, size: int) -> Any:
    wide = np.float64 if name in FLOATS else dtype_of(name)
    stacked = np.stack([numbers(name, rank, count).astype(wide) for rank in range(size)])
    with np.errstate(over="ignore"):
        if op != "average":
            return REFERENCE[op](stacked).astype(dtype_of(name))
        total = stacked.sum(0)
        if name in INTEGERS:
            return total.astype(dtype_of(name)) // size
        adds = np.dtype(np.float64 if name == "float64" else np.float32)
        return (total.astype(adds) * adds.type(1 / size)).astype(dtype_of(name))


def same(got: Any, expected: Any) -> bool:
    if got.tobytes() == expected.tobytes():
        return True
    return np.array_equal(got.astype(np.float64), expected.astype(np.float64), equal_nan=True)


def reduce_all_types(group: Group) -> list[str]:
    rank, size = group.rank, group.size
    wrong = []
    ops: tuple[Any, ...] = ("average", *REFERENCE)
    for name, count, op in product((*FLOATS, *INTEGERS, "bool"), (6, 70_002), ops):
        if (op.startswith("bit") and name in FLOATS) or (op, name) == ("average", "bool"):
            continue
        mine, expected = numbers(name, rank, count), expected_of(op, name, count, size)
        if not same(group.reduce(mine.copy(), op, root=1), expected if rank == 1 else mine):
            wrong.append(f"reduce({op}) of {count} {name}")
        share = slice(rank * count // size, (rank + 1) * count // size)
        if not same(group.reduce_scatter(mine, op), expected[share]):
            wrong.append(f"reduce_scatter({op}) of {count} {name}")
        if not same(group.all_reduce(mine, op), expected):
            wrong.append(f"all_reduce({op}) of {count} {name}")
    return wrong


def test_types_and_operations(tmp_path: Path, fabric: str) -> None:
    hosts = on_a_host(fabric)
    size = 3 if hosts else 2
    assert results(reduce_all_types, tmp_path, size, on_a_host=hosts) == [[]] * size


def uneven_adaptive_and_many(group: Group) -> None:
    rank, size = group.rank, group.size
    rows = [2 * i for i in range(size)]  # rank 0 has none
    start = sum(rows[:rank])
    for width in (1, 5000):
        every = np.arange(sum(rows) * width, dtype=np.float32).reshape(-1, width)
        mine = every[start : start + rows[rank]]
        assert (group.all_gather(mine, rows=rows) == every).all()
        gathered = group.gather(mine, rows=rows, root=1)
        assert (gathered is None) == (rank != 1)
        assert gathered is None or (gathered == every).all()
        given = every if rank == 1 else None
        assert (group.scatter(np.empty_like(mine), given, rows=rows, root=1) == mine).all()
        share = group.reduce_scatter(every + rank, "average", rows=rows)
        assert (share == mine + (size - 1) / 2).all()
    halves = group.all_reduce(np.full(9, rank + 1.0), factor=0.5)
    assert (halves == size * (size + 1) / 4).all()
    # Orthogonal ones are added, so that of four two are left: (1, 2) and (3, 4).
    vector = np.zeros(8, np.float32)
    vector[rank % 2] = rank + 1
    found = group.all_reduce(vector.copy(), "adasum")
    assert found.tolist() == pytest.approx([2.24, 2.92, *[0] * 6])
    many = [np.full(shape, rank + 1.0, kind) for shape in ((), (3, 2), (70_000,), (0,))
            for kind in (np.float32, np.int16)]  # fmt: skip
    many.append(np.full((4, 4), rank + 1.0, np.float32)[:, ::2])
    assert group.all_reduce_many(many)[0] is many[0]
    assert all((each == size * (size + 1) / 2).all() for each in many)
    for each in many:
        each[...] = rank
    assert all((each == 1).all() for each in group.broadcast_many(many, 1, async_op=True).wait())
    both = group.all_reduce_many([np.full(2, rank + 1.0), np.full(2, 1.0)], "adasum")
    assert (both[1] == 1).all()


def many_by_rows(group: Group) -> None:
    rank, size = group.rank, group.size
    every = np.arange(1.0, size + 1)
    given: list[Any] = [
        np.full(shape, rank + 1.0, kind)
        for shape in ((), (3, 2), (70_000,), (0,))
        for kind in (np.float32, np.int16)
    ]
    given.append(np.full((4, 4), rank + 1.0, np.float32)[:, ::2])
    for found, each in zip(group.all_gather_many(given), given, strict=True):
        assert found.shape == (size, *each.shape)
        assert found.dtype == each.dtype
        assert (found == every.reshape(-1, *[1] * each.ndim)).all()
    # The rows that are rank i's share are i, and more by the number of the rank that gives them.
    whole: list[Any] = [
        (np.repeat(np.arange(size), rows).reshape(-1, 1) * np.ones((1, width)) + rank).astype(kind)
        for rows, width in ((1, 3), (2, 1), (3, 20_000), (1, 0))
        for kind in (np.float32, np.int16)
    ]
    whole.append(np.repeat(whole[0], 2, axis=1)[:, ::2])
    for shares, wanted in (
        (group.reduce_scatter_many(whole), sum(rank + each for each in range(size))),
        (group.reduce_scatter_many(whole, "max"), rank + size - 1),
    ):
        for found, each in zip(shares, whole, strict=True):
            assert found.shape == (len(each) // size, each.shape[1])
            assert found.dtype == each.dtype
            assert (found == wanted).all()


def many_without_elements(group: Group) -> None:
    rank, size = group.rank, group.size
    every, total = np.arange(1, size + 1), size * (size + 1) / 2
    some: Any = np.full((size, 2), rank + 1, np.float32)
    other = some.astype(np.int16)
    for shape in ((0,), (0, 4), (size, 0)):
        none: Any = np.empty(shape, np.float32)
        for many in ([none, some], [some, none], [none, other], [other, none], [none], [none] * 2):
            gathered, shares = group.all_gather_many(many), group.reduce_scatter_many(many)
            sums = group.all_reduce_many([each.copy() for each in many])
            for each, rows, share, whole in zip(many, gathered, shares, sums, strict=True):
                assert rows.shape == (size, *each.shape)
                assert (rows == every.reshape(-1, *[1] * each.ndim)).all()
                assert share.shape == (len(each) // size, *each.shape[1:])
                assert (share == total).all()
                assert (whole == total).all()
                assert rows.dtype == share.dtype == each.dtype


def test_many_arrays_of_which_some_have_no_elements(tmp_path: Path) -> None:
    def run(rank: int) -> None:
        with join(tmp_path, rank, 2, timeout=LIMIT_SECONDS) as group:
            many_without_elements(group)

    with futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))


def all_kinds(group: Group) -> str:
    uneven_adaptive_and_many(group)
    many_by_rows(group)
    return every_operation(group)


def every_operation(group: Group) -> str:
    rank, size = group.rank, group.size
    for shape in ((), (3,), (size, 40_000), (0, 4)):
        array = np.full(shape, rank + 1.0, np.float32)
        total = size * (size + 1) / 2
        out = np.empty_like(array)
        assert group.all_reduce(array, out=out) is out
        assert (out == total).all()
        assert (array == rank + 1).all()
        assert (group.all_reduce(array.copy(), "average") == total / size).all()
        reduced = group.reduce(array.copy(), root=1)
        assert (reduced == (total if rank == 1 else rank + 1)).all()
        assert (group.broadcast(array.copy(), root=1) == 2).all()
        ones = np.arange(1.0, size + 1).reshape(-1, *[1] * len(shape))
        assert (group.all_gather(array) == ones).all()
        gathered = group.gather(array, root=1)
        assert (gathered is None) == (rank != 1)
        assert gathered is None or (gathered == ones).all()
        given = np.broadcast_to(ones.astype(np.float32), (size, *shape)) if rank == 1 else None
        assert (group.scatter(np.empty_like(array), given, root=1) == rank + 1).all()
    rows = np.arange(size * 4.0).reshape(size * 2, 2) + rank
    share = group.reduce_scatter(rows)
    expected = np.arange(size * 4.0).reshape(size * 2, 2) * size + size * (size - 1) / 2
    assert (share == expected[rank * 2 : rank * 2 + 2]).all()
    exchanged = group.all_to_all(np.repeat(np.arange(size) + 10 * rank, 3))
    assert (exchanged == np.repeat(np.arange(size) * 10 + rank, 3)).all()
    # Rank i gives i + j rows to rank j.
    gives = [rank + other for other in range(size)]
    uneven = group.all_to_all(np.full((sum(gives), 2), rank), gives, gives)
    assert uneven.shape == (sum(gives), 2)
    assert (uneven[:, 0] == np.repeat(np.arange(size), gives)).all()
    group.barrier()
    return group.fabric


@pytest.mark.parametrize("size", [2, 3])
def test_operations(tmp_path: Path, size: int) -> None:
    assert results(every_operation, tmp_path, size) == ["shared memory"] * size


def test_operations_between_hosts(tmp_path: Path, fabric: str) -> None:
    got = results(all_kinds, tmp_path, 4, on_a_host=on_a_host(fabric))
    assert got == [fabric] * 4


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling"])
def test_an_algorithm_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setenv("TENSORWIRE_ALLREDUCE", algorithm)
    assert results(every_operation, tmp_path, 3) == ["shared memory"] * 3


def test_an_algorithm_that_there_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_ALLREDUCE", "rings")
    with futures.ThreadPoolExecutor(2) as pool:
        joining = [pool.submit(join, tmp_path / "store", rank, 2) for rank in range(2)]
        for ended in joining:
            with pytest.raises(ValueError, match=r"TENSORWIRE_ALLREDUCE.*halving_doubling"):
                ended.result(LIMIT_SECONDS)


def test_no_table_decides_for_a_deterministic_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    table.write_text("all_reduce memory 2 1024 one_step\n")
    monkeypatch.setenv("TENSORWIRE_TUNING", str(table))

    def tuned(rank: int, name: str, deterministic: bool) -> tuple[bool, bool]:
        store = tmp_path / name
        with join(store, rank, 2, timeout=LIMIT_SECONDS, deterministic=deterministic) as group:
            part = group.split(0)
            assert part is not None
            with part:
                return group.tuned, part.tuned

    with futures.ThreadPoolExecutor(2) as pool:
        for name, deterministic in (("any", False), ("same", True)):
            found = list(pool.map(tuned, range(2), [name] * 2, [deterministic] * 2))
            assert found == [(not deterministic, not deterministic)] * 2
        differ = [pool.submit(tuned, rank, "differ", rank == 1) for rank in range(2)]
        for ended in differ:
            with pytest.raises(GroupError, match=r"(?i)deterministic"):
                ended.result(LIMIT_SECONDS)
        monkeypatch.setenv("TENSORWIRE_ALLREDUCE", "ring")
        refused = [pool.submit(tuned, rank, "forced", True) for rank in range(2)]
        for ended in refused:
            with pytest.raises(GroupError, match="TENSORWIRE_ALLREDUCE"):
                ended.result(LIMIT_SECONDS)


def test_one_rank_is_a_group(tmp_path: Path) -> None:
    with join(tmp_path, 0, 1) as group:
        array = np.arange(5.0)
        assert (group.all_reduce(array) == np.arange(5.0)).all()
        assert (group.all_gather(array) == [np.arange(5.0)]).all()
        assert (group.reduce_scatter(array) == array).all()
        assert (group.all_to_all(array, [5], [5]) == array).all()
        group.barrier()


def strided_and_shared(group: Group) -> None:
    whole = np.full((100, 100), group.rank + 1.0, np.float32)
    column = whole[:, 7]
    assert group.all_reduce(column) is column
    assert (whole[:, 7] == 3).all()
    assert (whole[:, 8] == group.rank + 1).all()
    shared = tw.full(50_000, group.rank + 1.0, np.float32)
    assert (group.all_reduce(shared) == 3).all()
    group.broadcast(whole.T, root=1)
    assert (whole == whole[0, 0]).all() or (whole[:, 7] == 3).all()
    fixed = np.full(10, 5.0)
    fixed.flags.writeable = False
    got = group.broadcast(fixed if group.rank == 0 else np.zeros(10))
    assert (got == 5).all()


def test_arrays_of_any_layout(tmp_path: Path) -> None:
    results(strided_and_shared, tmp_path, 2)


def refuse_and_go_on(group: Group) -> None:
    array = np.zeros(4, np.float32)
    frozen = array.copy()
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match="complex64 have no collectives"):
        group.all_reduce(array.astype(np.complex64))
    with pytest.raises(ValueError, match="op 'mean' is none of"):
        group.all_reduce(array, "mean")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="there is no bit_and of float32"):
        group.all_reduce(array, "bit_and")
    with pytest.raises(ValueError, match="out is read-only"):
        group.all_reduce(frozen)
    with pytest.raises(ValueError, match="not float32 of shape"):
        group.all_reduce(array, out=np.zeros(5, np.float32))
    with pytest.raises(ValueError, match="there is no rank 2 in a group of 2"):
        group.broadcast(array, root=2)
    with pytest.raises(ValueError, match="cannot be shared by 2 ranks"):
        group.reduce_scatter(np.zeros(3))
    with pytest.raises(ValueError, match="add up to 4"):
        group.all_to_all(array, [1, 2], [1, 2])
    with pytest.raises(ValueError, match="goes to another rank"):
        group.send(array, group.rank)
    with pytest.raises(ValueError, match="there is no adasum of int32"):
        group.all_reduce(array.astype(np.int32), "adasum")
    with pytest.raises(ValueError, match="sums and averages of floats have a factor"):
        group.all_reduce(array, "max", factor=2.0)
    with pytest.raises(ValueError, match="rows needs 2 numbers"):
        group.all_gather(array, rows=[4])
    with pytest.raises(ValueError, match=r"rank \d has 5 rows"):
        group.all_gather(array, rows=[5, 5])
    with pytest.raises(ValueError, match="add up to 4"):
        group.reduce_scatter(array, rows=[1, 2])
    with pytest.raises(ValueError, match="array 1 is read-only"):
        group.all_reduce_many([array, frozen])
    for many in (group.all_reduce_many, group.all_gather_many, group.reduce_scatter_many):
        with pytest.raises(TypeError, match=r"array 1 is a builtins\.list, and has to be of N"):
            many([array, cast("np.ndarray[Any, Any]", [1.0])])
    with pytest.raises(TypeError, match=r"out is a builtins\.list"):
        group.receive_any(cast("np.ndarray[Any, Any]", [1.0]))
    with pytest.raises(ValueError, match="cannot be shared"):
        group.reduce_scatter_many([np.ones(group.size), np.ones(group.size + 1)])
    refused: tuple[Any, ...] = (1.0, 1.5, np.True_, "1")
    for each in refused:
        with pytest.raises(TypeError, match="color is a whole number, not "):
            group.split(each)
        with pytest.raises(TypeError, match="key is a whole number, not "):
            group.split(None, each)
    assert (group.all_reduce(array + 1) == 2).all()


def test_wrong_arguments_change_nothing(tmp_path: Path) -> None:
    results(refuse_and_go_on, tmp_path, 2)


def talk(group: Group) -> None:
    other = 1 - group.rank
    big = np.full(300_000, group.rank, np.float32)
    for tag in (1, 2):
        group.send(big + tag, other, tag)
    for tag in (2, 1):
        assert (group.receive(np.empty_like(big), other, tag) == other + tag).all()
    with pytest.raises(GroupError, match="no message has come from rank"):
        group.receive(big, other, 3, timeout=0.01)
    group.barrier()  # until the other one has looked, too


def test_messages_by_tag(tmp_path: Path) -> None:
    results(talk, tmp_path, 2)


def hear_all(group: Group) -> list[tuple[int, float]]:
    if group.rank != 1:
        group.send(np.full(3, float(group.rank)), 1, tag=9)
        group.barrier()
        return []
    out = np.empty(3)
    heard = [(group.receive_any(out, tag=9), float(out[0])) for _ in range(group.size - 1)]
    with pytest.raises(TimeoutError, match="from any rank"):
        group.receive_any(out, tag=9, timeout=0.01)
    group.barrier()
    return sorted(heard)


def test_messages_of_any_rank(tmp_path: Path) -> None:
    assert results(hear_all, tmp_path, 4) == [[], [(0, 0.0), (2, 2.0), (3, 3.0)], [], []]


LARGE = 4 << 20  # from here on ranks of a host read arrays where they lie


def move_a_lot(group: Group) -> dict[str, Any]:
    large = np.zeros(LARGE, np.uint8)
    group.all_reduce(np.zeros(4))
    group.all_reduce(np.zeros(4))
    group.all_reduce(large)
    group.broadcast(large, 0)
    return group.statistics()


@pytest.mark.parametrize(
    ("transport", "small", "moved", "reduced"),
    [
        ("auto", "one_step", {"in_place", "stage"}, "stage"),
        ("tcp", "direct", {"tree"}, "pairwise"),
    ],
)
def test_statistics_say_which_way_operations_went(
    transport: str,
    small: str,
    moved: set[str],
    reduced: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", transport)
    for found in results(move_a_lot, tmp_path, 2):
        assert found["all_reduce"] == {
            small: {"operations": 2, "bytes": 64},
            reduced: {"operations": 1, "bytes": LARGE},
        }
        (way,) = found["broadcast"]
        assert way in moved  # as the kernel permits
        assert found["broadcast"][way] == {"operations": 1, "bytes": LARGE}


def split_twice(group: Group) -> tuple[Any, ...]:
    with group.split(group.rank % 2, key=-group.rank) as half:  # type: ignore[union-attr]
        members = [int(rank) for rank in half.all_gather(np.array([group.rank]))[:, 0]]
    alone = group.split(7 if group.rank == 1 else None)
    sizes = None if alone is None else (alone.rank, alone.size)
    if alone is not None:
        alone.close()
    return members, sizes


def test_split(tmp_path: Path) -> None:
    assert results(split_twice, tmp_path, 3) == [
        ([2, 0], None),
        ([1], (0, 1)),
        ([2, 0], None),
    ]


def test_ranks_meet_by_the_number_that_a_color_is(tmp_path: Path) -> None:
    def part(rank: int, color: int, key: int) -> tuple[int, int]:
        with join(tmp_path, rank, 2, timeout=LIMIT_SECONDS) as group:
            half = group.split(color, key, timeout=20.0)
            assert half is not None
            with half:
                return half.rank, half.size

    with futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(part, range(2), (True, np.int64(1)), (1, False))) == [(1, 2), (0, 2)]


def test_splits_are_counted_in_the_order_in_which_they_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefixes: list[str] = []

    class Prefixed(PrefixStore):
        def __init__(self, prefix: str, store: Store) -> None:
            prefixes.append(prefix)
            super().__init__(prefix, store)

    monkeypatch.setattr(group_module, "PrefixStore", Prefixed)
    gather = Group.all_gather
    others: list[threading.Thread] = []

    def all_gather(self: Group, *arguments: Any, **named: Any) -> Any:
        gathered = gather(self, *arguments, **named)
        if not others:  # another thread splits before this one has counted
            others.append(threading.Thread(target=lambda: self.split(2)))
            others[0].start()
            others[0].join(0.2)
        return gathered

    monkeypatch.setattr(Group, "all_gather", all_gather)
    with join(tmp_path, 0, 1) as group:
        group.split(1)
        others[0].join()
    assert sorted(prefixes) == ["split-1-1", "split-2-2"]
