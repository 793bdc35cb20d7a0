# SPDX-License-Identifier: Apache-2.0
"""What crosses stages of PyTorch programs."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("there is no PyTorch", allow_module_level=True)

from tests.graph.torch_machine import TWO, WIDTH, Net, inputs, program
from torch.fx.passes.shape_prop import ShapeProp
from torch.fx.passes.split_module import split_module

import torch
from tensorwire import graph
from torch import nn


def summary(edges: list[graph.Edge]) -> list[tuple[Any, ...]]:
    return [(edge.source, edge.target, edge.shape, edge.dtype, edge.nbytes) for edge in edges]


def test_an_exported_program() -> None:
    """The mask goes from the first stage to the last one, since that uses it."""
    made = program()
    assert made.machines == ("a", "b", "c")
    assert (made.inputs_of("a"), made.inputs_of("c")) == (("x",), ())
    assert summary(made.edges()) == [
        ("a", "b", (4, WIDTH), "float32", 4 * 4 * WIDTH),
        ("a", "c", (4, WIDTH), "float32", 4 * 4 * WIDTH),
        ("b", "c", (4, WIDTH), "float32", 4 * 4 * WIDTH),
    ]
    assert {edge.way for edge in made.edges()} == {"placed"}
    x = inputs(1)
    with torch.no_grad():
        wanted = Net().eval()(x)
    found = made(x=x)
    assert all(
        torch.equal(found[name], each) for name, each in zip(made.outputs, wanted, strict=True)
    )


def test_sizes_that_are_not_known_are_described() -> None:
    made = program(dynamic=True)
    tensors = [edge for edge in made.edges() if edge.shape]
    assert {edge.shape for edge in tensors} == {(None, WIDTH)}
    assert {edge.way for edge in tensors} == {"described"}
    scalars = [edge for edge in made.edges() if not edge.shape]
    assert {(edge.dtype, edge.nbytes) for edge in scalars} <= {("int64", 8)}


def test_a_program_that_goes_back_and_forth() -> None:
    """The stages of one machine that wait for another one are in another round."""
    made = graph.program(
        torch.export.export(Net().eval(), (inputs(0),)), machines={**TWO, "third": "a"}
    )
    assert [(stage.machine, stage.round) for stage in made.stages] == [
        *(("a", 0), ("b", 1), ("a", 2)),
    ]
    assert [(edge.source, edge.target, edge.round) for edge in made.edges()][-1] == ("b", "a", 1)
    x = inputs(2)
    with torch.no_grad():
        wanted = Net().eval()(x)
    assert torch.equal(made(x=x)[made.outputs[0]], wanted[0])


def test_a_graph_that_was_split_already() -> None:
    exported = torch.export.export(Net().eval(), (inputs(0),))
    whole: Any = exported.graph_module
    count = {"nodes": 0}

    def half(node: torch.fx.Node) -> int:
        count["nodes"] += 1
        return int(count["nodes"] > 3)

    none: Any = None
    parts = split_module(whole, none, half)
    edges = graph.edges(parts)
    assert {(edge.source, edge.target) for edge in edges} == {("submod_0", "submod_1")}
    assert {edge.shape for edge in edges} == {(4, WIDTH)}
    assert {edge.dtype for edge in edges} == {"float32", "bool"}
    renamed = graph.edges(parts, machines={"submod_0": "a", "submod_1": "b"})
    assert {(edge.source, edge.target) for edge in renamed} == {("a", "b")}


class Ragged(nn.Module):  # type: ignore[misc, unused-ignore]
    """How much crosses depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        found: torch.Tensor = self.second(y[y.sum(-1) > 0])
        return found


def test_a_size_that_the_data_decides() -> None:
    exported = torch.export.export(Ragged().eval(), (torch.randn(8, 8),))
    (edge,) = graph.edges(exported, machines={"first": "a", "second": "b", "": "a"})
    assert (edge.shape, edge.dtype, edge.way) == ((None, 8), "float32", "described")


def _cut(step: Callable[[Any, Any], Any]) -> graph.Program:
    """``step`` is given what one machine has made, and what another one makes of it."""

    class Writing(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.first(x)
            return step(y, self.second)

    traced = torch.fx.symbolic_trace(Writing().eval())
    ShapeProp(traced).propagate(torch.ones(4, 8))
    made = graph.program(traced, machines={"first": "a", "second": "b", "": "a"})
    x = torch.randn(4, 8)
    with torch.no_grad():
        wanted = traced(x)
    (found,) = made(x=x).values()
    assert torch.equal(found, wanted)
    return made


def test_values_that_are_written_and_used_elsewhere() -> None:
    def before(y: Any, second: Any) -> Any:
        z = second(y)
        y.add_(1)
        return z

    def by_a_view(y: Any, second: Any) -> Any:
        z = second(y)
        y.view(-1).mul_(2)
        return z + y

    def by_an_element(y: Any, second: Any) -> Any:
        z = second(y)
        y[0].fill_(1)
        return z

    def by_an_attribute(y: Any, second: Any) -> Any:
        z = second(y)
        y.T.mul_(2)
        return z

    def by_an_option(y: Any, second: Any) -> Any:
        z = second(y)
        nn.functional.relu(y, inplace=True)
        return z

    def by_its_taker(y: Any, second: Any) -> Any:
        return second(y).add_(1) + y

    for wrong in (before, by_a_view, by_an_element, by_an_attribute, by_an_option):
        with pytest.raises(graph.ScopeError, match="in place"):
            _cut(wrong)
    assert _cut(lambda y, second: second(y.relu_())).edges()  # sent when it is done
    assert _cut(lambda y, second: second(y.add_(1).view(4, 8)) + 1).edges()
    assert _cut(by_its_taker).edges()  # another tensor


def test_a_stage_that_writes_what_it_was_given() -> None:
    class Split(nn.Module):  # type: ignore[misc, unused-ignore]
        def forward(self, x: torch.Tensor) -> Any:
            y = x + 1
            z = y.add_(1)
            return z * y

    whole = torch.fx.symbolic_trace(Split())
    ShapeProp(whole).propagate(torch.ones(4))
    machine = {"add": 0, "add_": 1, "mul": 2}
    none: Any = None
    parts = split_module(whole, none, lambda node: machine[node.name])
    with pytest.raises(graph.ScopeError, match="submod_1 writes"):
        graph.program(parts)


class Blocks(nn.Module):  # type: ignore[misc, unused-ignore]
    """``step`` is given the input and three layers, and may have blocks under ``torch.no_grad``."""

    def __init__(self, step: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))
        self.step = step

    def forward(self, x: torch.Tensor) -> Any:
        return self.step(x, self.first, self.second, self.third)


def _exported(step: Callable[..., Any], **where: str) -> graph.Program:
    exported = torch.export.export(Blocks(step).eval(), (torch.ones(4, 8),))
    made = graph.program(exported, machines={**where, "": "a"})
    x = torch.randn(4, 8)
    with torch.no_grad():
        wanted = exported.module()(x)
    (found,) = made(x=x).values()
    assert torch.equal(found, wanted)
    return made


def test_what_is_written_under_no_grad() -> None:
    """torch.export makes a graph in the graph of such a block."""

    def written(x: Any, first: Any, second: Any, _: Any) -> Any:
        y = first(x)
        z = second(y)
        with torch.no_grad():
            y.add_(1)
        return z

    def by_a_view_that_it_gave(x: Any, first: Any, second: Any, _: Any) -> Any:
        y = first(x)
        with torch.no_grad():
            same = y.view(-1)
        z = second(y)
        with torch.no_grad():
            same.mul_(2)
        return z

    def of_another_one(x: Any, first: Any, second: Any, _: Any) -> Any:
        y = first(x)
        with torch.no_grad():
            other = y * 2
            other.add_(1)
        return second(y) + other

    for wrong in (written, by_a_view_that_it_gave):
        with pytest.raises(graph.ScopeError, match="writes linear in place, which linear_1 uses"):
            _exported(wrong, first="a", second="b")
    assert _exported(of_another_one, first="a", second="b").edges()


def test_a_part_of_a_split_graph_that_gives_a_view_of_what_it_was_given() -> None:
    class Split(nn.Module):  # type: ignore[misc, unused-ignore]
        def forward(self, x: torch.Tensor) -> Any:
            y = x + 1
            same = y.view(-1)
            z = same.mul_(2)
            return z, y * 3

    whole = torch.fx.symbolic_trace(Split())
    ShapeProp(whole).propagate(torch.ones(4, 1))
    machine = {"add": 0, "view": 1, "mul_": 2, "mul": 3}
    none: Any = None
    parts = split_module(whole, none, lambda node: machine[node.name])
    with pytest.raises(graph.ScopeError, match="submod_2 writes submod_0 in place"):
        graph.program(parts)


def test_a_boundary_inside_a_block_is_refused() -> None:
    def both(x: Any, first: Any, second: Any, third: Any) -> Any:
        with torch.no_grad():
            y = second(first(x))
        return third(y)

    def mixed(x: Any, first: Any, second: Any, third: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = second(first(x))
        return third(y.float())

    def one(x: Any, first: Any, second: Any, third: Any) -> Any:
        with torch.no_grad():
            y = first(x) + 1
        return third(second(y))

    where = {"first": "a", "second": "b", "third": "c"}
    for wrong in (both, mixed):
        with pytest.raises(
            graph.ScopeError, match=r"a boundary inside wrap_with_\w+: first and second are on diff"
        ):
            _exported(wrong, **where)
    made = _exported(one, **where)
    assert [(edge.source, edge.target) for edge in made.edges()] == [("a", "b"), ("b", "c")]
    assert _exported(both, first="a", second="a", third="b").machines == ("a", "b")


def test_a_result_that_is_an_input() -> None:
    """It is had where the input is taken, unless somebody writes to it."""
    step: Any = Blocks(lambda x, first, second, _: (second(first(x)), x)).eval()
    exported = torch.export.export(step, (torch.ones(4, 8),))
    made = graph.program(exported, machines={"first": "a", "second": "b"})
    assert (made.outputs_of("a"), made.outputs_of("b")) == (("x",), made.outputs[:1])
    x = torch.randn(4, 8)
    assert made(x=x)["x"] is x

    def written(x: Any, first: Any, second: Any, _: Any) -> Any:
        return second(first(x)), x, x.add_(1)

    traced = torch.fx.symbolic_trace(Blocks(written).eval())
    ShapeProp(traced).propagate(torch.ones(4, 8))
    with pytest.raises(graph.ScopeError, match="writes x in place"):
        graph.program(traced, machines={"first": "a", "second": "b", "": "b"})


def test_a_result_that_is_an_input_which_no_stage_takes() -> None:
    """The first stage gives it back. None is no result, and what comes twice is one."""

    class Passing(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, z: torch.Tensor) -> Any:
            y = self.second(self.first(x))
            return y, None, z, y

    x, z = torch.randn(4, 8), torch.randn(3)
    exported = torch.export.export(Passing().eval(), (x, z))
    made = graph.program(exported, machines={"first": "a", "second": "b"})
    assert (made.outputs_of("a"), made.outputs_of("b")) == (("z",), made.outputs[:1])
    assert (made.inputs_of("a"), made.inputs_of("b")) == (("x", "z"), ())
    assert summary(made.edges()) == [("a", "b", (4, 8), "float32", 128)]
    assert made(x=x, z=z)["z"] is z


class Branching(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(
            x.sum() > 0, lambda y: self.layer(y) + 1, lambda y: torch.sin(self.layer(y)), (x,)
        )


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("rest", [{}, {"": "b"}], ids=["alone", "with the rest elsewhere"])
def test_branches_are_where_their_module_is(strict: bool, rest: dict[str, str]) -> None:
    whole = nn.Sequential(Branching(), nn.Linear(8, 8)).eval()
    x = torch.randn(4, 8)
    exported = torch.export.export(whole, (x,), strict=strict)
    made = graph.program(exported, machines={"0": "a", "1": "b", **rest})
    assert summary(made.edges()) == [("a", "b", (4, 8), "float32", 128)]
    with torch.no_grad():
        wanted = whole(x)
    (found,) = made(**{made.inputs[0]: x}).values()
    assert torch.equal(found, wanted)


def test_programs_that_cannot_be_cut() -> None:
    exported = torch.export.export(Net().eval(), (inputs(0),))
    with pytest.raises(graph.ScopeError, match="in one piece: give machines="):
        graph.edges(exported)
    with pytest.raises(graph.ScopeError, match="no operation of the program has a machine"):
        graph.edges(exported, machines={"nothing": "a"})
    with pytest.raises(graph.ScopeError, match="is a parameter: return what stages compute"):
        _exported(lambda x, first, second, _: (second(first(x)), first.weight), first="a")
    with pytest.raises(graph.ScopeError, match="a result is the constant 3: return"):
        _exported(lambda x, first, second, _: (second(first(x)), {"n": 3}), first="a")
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    with pytest.raises(graph.ScopeError, match=r"shape of .* is not known: .*ShapeProp"):
        graph.edges(traced, machines={"0": "a", "1": "b"})
