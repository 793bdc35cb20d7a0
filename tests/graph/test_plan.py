# SPDX-License-Identifier: Apache-2.0
"""Plans: what becomes a message, how much memory that takes, and their wire form."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwire.graph import Edge, Plan, PlanError, ScopeError, edges, plan, program
from tensorwire.graph.edge import merged
from tensorwire.graph.places import Operation, finder, rounds, settle

KIB = 1024
MIB = 1 << 20


def edge(name: str, nbytes: int, source: str = "a", target: str = "b", **more: Any) -> Edge:
    return Edge(name, source, target, (nbytes,), "uint8", **more)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
found = st.lists(
    st.builds(
        Edge,
        names,
        st.sampled_from(["a", "b"]),
        st.sampled_from(["c", "d"]),
        st.none() | st.lists(st.none() | st.integers(0, 1 << 20), max_size=4).map(tuple),
        st.sampled_from(["float32", "bfloat16", "string", "resource", "bool"]),
        st.sampled_from(["inferred", "traced", "varies"]),
        st.sampled_from(["step", "iteration"]),
        st.integers(0, 9),
    ),
    max_size=12,
    unique_by=lambda each: (each.name, each.source, each.target),
)


@settings(max_examples=60)
@given(found, st.integers(1, 64), st.integers(0, MIB))
def test_the_wire_form_says_all(found: list[Edge], depth: int, coalesce: int) -> None:
    made = plan(found, depth=depth, coalesce=coalesce)
    again = Plan.from_bytes(made.to_bytes())
    assert again == made
    assert again.digest == made.digest
    assert list(again.edges) == found
    moved = [each for transfer in again.transfers() for each in transfer.edges]
    stock = [each for each in again.edges if each.way == "stock"]
    assert {id(each) for each in [*moved, *stock]} <= {id(each) for each in again.edges}
    assert len(moved) + len(stock) == len(found)


@settings(max_examples=10)
@given(found)
def test_any_plan_can_be_shown(found: list[Edge]) -> None:
    made = plan(found)
    assert all(name in made.table() for name in made.machines)
    assert json.loads(json.dumps(made.as_json()))["digest"] == made.digest


@settings(max_examples=60)
@given(found)
def test_messages_hold_their_tensors_apart(found: list[Edge]) -> None:
    for transfer in plan(found).transfers():
        end = 0
        for each, offset in zip(transfer.edges, transfer.offsets, strict=True):
            assert offset >= end
            assert offset % 64 == 0
            end = offset + (each.nbytes or 0)
        assert transfer.nbytes in (end, None)
        assert len({(each.source, each.target, each.round) for each in transfer.edges}) == 1


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_other_bytes_are_no_plan(data: bytes) -> None:
    with pytest.raises(PlanError):
        Plan.from_bytes(data)


@settings(max_examples=100)
@given(found, st.data())
def test_a_plan_that_was_tampered_with(found: list[Edge], data: st.DataObject) -> None:
    """It is refused, or a plan again, with another digest."""
    good = plan(found)
    raw = bytearray(good.to_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        other = Plan.from_bytes(bytes(raw))
    except PlanError:
        return
    other.transfers()
    other.pairs()
    assert other.digest != good.digest or other == good


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"depth": 0}, "Expected `int` .= "),
        ({"depth": 65}, "Expected `int` .= "),
        ({"coalesce": -1}, "Expected `int` .= "),
        ({"coalesce": MIB + 1}, "Expected `int` .= "),
        ({"magic": "other"}, "no plan of version 2: it begins with 'other'"),
        ({"version": 1}, "begins with .tensorwire.graph., version 1"),
        ({"edges": (edge("x", 4, "a", "a"),)}, "to itself"),
        ({"edges": (edge("x", 4), edge("x", 8))}, "a sends b two edges named x"),
        ({"edges": (edge("x", -1),)}, "no plan"),
        ({"edges": (Edge("", "a", "b", (), "bool"),)}, "no plan"),
        ({"edges": (Edge("x", "a", "b", (1,) * 33, "bool"),)}, "no plan"),
        ({"edges": (edge("x", 4, order=(1,)),)}, r"x has no axes in the order \[1\]"),
        ({"edges": (edge("x", 4, order=(0, 0)),)}, "x has no axes in the order"),
        ({"edges": (Edge("x", "a", "b", None, "bool", order=(0,)),)}, "x has no axes"),
        ({"edges": (edge("x", 4, order=(-1,)),)}, "no plan"),
    ],
)
def test_plans_that_cannot_be(changed: dict[str, Any], why: str) -> None:
    wrong = msgspec.structs.replace(plan([]), **changed)
    with pytest.raises(PlanError, match=why):
        Plan.from_bytes(wrong.to_bytes())


def test_a_plan_that_is_too_large() -> None:
    with pytest.raises(PlanError, match="the limit is 16777216"):
        Plan.from_bytes(bytes((16 << 20) + 1))
    with pytest.raises(PlanError, match="65537 edges"):
        plan(edge(str(number), 1) for number in range(65537))


def test_wrong_arguments() -> None:
    for depth in (0, 65):
        with pytest.raises(PlanError, match="depth is 1 to 64"):
            plan([], depth=depth)
    for coalesce in (-1, MIB + 1):
        with pytest.raises(PlanError, match="coalesce is 0 to"):
            plan([], coalesce=coalesce)
    with pytest.raises(TypeError, match="a list is no graph"):
        edges([])
    with pytest.raises(TypeError, match="a str is no graph"):
        program("graph")


def test_what_is_small_travels_together() -> None:
    """In order, up to the threshold, and only what is ready at the same time."""
    made = plan(
        [
            edge("s1", 3000),
            edge("big", 9000),
            edge("s2", 3000),
            edge("back", 10, "b", "a"),
            edge("s3", 3000),
            edge("later", 10, round=1),
            edge("unknown", 10, seen="varies"),
            Edge("text", "a", "b", (1,), "string"),
            edge("loop", 10, per="iteration"),
        ],
        coalesce=8192,
    )
    groups = [[each.name for each in transfer.edges] for transfer in made.transfers()]
    assert groups == [["s1", "s2"], ["big"], ["back"], ["s3"], ["later"], ["unknown"]]
    first = made.transfers()[0]
    assert first.offsets == (0, 3008)
    assert first.nbytes == 6008
    assert [transfer.number for transfer in made.transfers()] == list(range(6))
    assert made.coalesced() == (first,)
    assert len(plan([edge("a", 1), edge("b", 1)], coalesce=0).transfers()) == 2


def test_bytes_and_memory() -> None:
    made = plan(
        [edge("w", 100 * MIB, "ps", "one"), edge("w", 100 * MIB, "ps", "two")]
        + [edge("g", 100 * MIB, name, "ps") for name in ("one", "two")]
        + [Edge("ragged", "one", "ps", (None, 4), "float32")],
        depth=2,
    )
    assert made.moved("ps") == (200 * MIB, 200 * MIB)
    assert made.moved("one") == (100 * MIB, 100 * MIB)
    # Two steps of all; and a peer may read a quarter of the arena at a time.
    assert made.arena("ps") == (800 * MIB, "800M", 1 << 30)
    assert made.arena("one") == (800 * MIB, "800M", 1 << 30)
    assert plan(made.edges, depth=3).arena("ps").tf_rdma_buf_size == 2 << 30
    pairs = {(pair.source, pair.target): pair for pair in made.pairs()}
    assert pairs["one", "ps"][2:] == (2, 2, 100 * MIB, 1)
    assert "ragged" in made.table()
    with pytest.raises(KeyError, match="no machine 'three'"):
        made.moved("three")


def test_digests_differ_with_all_that_a_plan_says() -> None:
    one = [edge("x", 4)]
    made = [
        plan(one),
        plan(one, depth=3),
        plan(one, coalesce=0),
        plan([edge("x", 5)]),
        plan([edge("x", 4, target="c")]),
        plan([edge("x", 4, round=1)]),
        plan([edge("x", 4, order=(0,))]),
        plan([*one, edge("y", 4)]),
    ]
    assert len({each.digest for each in made}) == len(made)
    assert plan(one).digest == made[0].digest


@pytest.mark.parametrize(
    ("seen", "shape", "said"),
    [
        ([(2, 3), (2, 3)], (2, 3), "traced"),
        ([(2, 3), (4, 3)], (None, 3), "varies"),
        ([(2, 3), (2, 3, 1)], None, "varies"),
        ([None, (2,)], None, "varies"),
    ],
)
def test_steps_are_merged(seen: list[Any], shape: Any, said: str) -> None:
    one = merged("x", [Edge("x", "a", "b", each, "float32", "traced") for each in seen])
    assert (one.shape, one.seen) == (shape, said)
    assert one.way == ("placed" if said == "traced" else "described")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (["varies", "varies"], "varies"),
        (["traced", "varies"], "varies"),
        (["inferred", "inferred"], "inferred"),
        (["inferred", "traced"], "traced"),
    ],
)
def test_what_steps_say_of_a_shape_is_kept(steps: list[Any], said: str) -> None:
    """A shape that varies within each step is the same in all of them: of extents that differ."""
    one = merged("x", [Edge("x", "a", "b", (None, 4), "float32", each) for each in steps])
    assert (one.shape, one.seen) == ((None, 4), said)


def test_operations_without_a_machine_are_with_their_users() -> None:
    operations = [
        Operation("used by b first", None, []),
        Operation("of a", "a", []),
        Operation("of b", "b", [0, 1]),
        Operation("of a again", "a", [0, 2]),
        Operation("used by nobody", None, [2, 3]),
    ]
    machines = settle(operations)
    assert machines == ["b", "a", "b", "a", "a"]
    assert rounds(operations, machines) == [0, 0, 1, 2, 2]
    with pytest.raises(ScopeError, match="say which by machines="):
        settle([Operation("x", None, [])])


def test_places_by_the_beginnings_of_paths() -> None:
    find = finder({"layers": "a", "layers.1": "b", "head": "c"}, ".")
    assert [find(path) for path in ("layers.0.x", "layers.1.x", "layers.10", "head", "tail")] == [
        *("a", "b", "a", "c"),
        None,
    ]
    assert finder({"": "rest"}, ".")("tail") == "rest"
    assert finder(None, ".")("tail") == "tail"
    assert finder(str.upper, ".")("tail") == "TAIL"
