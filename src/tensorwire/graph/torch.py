# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs in stages: those of ``torch.export``, and ``GraphModule`` s of torch.fx."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch.fx

import torch
from tensorwire.graph import places, torch_writes
from tensorwire.graph.places import Machines, Operation, ScopeError
from tensorwire.graph.program import Program, Stage, Value

Node = Any
"""``torch.fx.Node``."""

_NO_WORK = ("placeholder", "get_attr", "output")
"""Nodes that compute nothing: parameters are had by each stage that uses them."""


def takes(graph: object) -> bool:
    return isinstance(graph, (torch.fx.GraphModule, torch.export.ExportedProgram))


def program(graph: Any, machines: Machines | None = None) -> Program:
    """A program cut where a tensor's machine changes.

    graph: an ``ExportedProgram``; or a ``GraphModule`` with shapes, as ``torch.export``,
    ``split_module`` and ``torch.distributed.pipelining`` give it. Parameters stay with the stages
    that use them, and a program has the inputs and outputs of its graph, by the names of the nodes.

    machines: by the path of a module (``layers.2.attention``). Without it, each submodule of the
    graph that is a graph itself is a machine of its own, as after ``split_module``.

    Stages run without gradients. ScopeError: no node has a machine, a boundary inside a block or a
    call that is a graph of its own (torch.no_grad, torch.autocast, torch.cond), a value that is no
    tensor and no number crosses, one is written in place and used elsewhere, or a result is a
    parameter or a constant. None is no result.
    """
    module = _module(graph)
    nodes = [node for node in module.graph.nodes if node.op not in _NO_WORK]
    number = {node: at for at, node in enumerate(nodes)}
    find = _finder(module, machines)
    operations: list[Operation] = []
    for node in nodes:
        taken = [number[each] for each in node.all_input_nodes if each in number]
        # A part of a tuple is where the tuple is.
        part = node.target is operator.getitem and taken
        machine = operations[taken[0]].place if part else find(node)
        operations.append(Operation(node.name, machine, taken))
    where = places.settle(operations)
    for at, node in enumerate(nodes):
        if node.target is operator.getitem and operations[at].takes:
            where[at] = where[operations[at].takes[0]]
    rounds = places.rounds(operations, where)
    at_place = dict(zip(nodes, zip(rounds, where, strict=True), strict=True))
    torch_writes.check(module, at_place)
    groups: dict[tuple[int, str], list[Node]] = {}
    for node, place in at_place.items():
        groups.setdefault(place, []).append(node)
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    results = list(output.all_input_nodes)
    torch.fx.node.map_aggregate(output.args, _check_result)
    for node in results:
        if node.op == "get_attr":
            raise ScopeError(f"the result {node.name} is a parameter: return what stages compute")
    values: dict[str, Value] = {}
    passed = [
        node
        for node in results
        if node.op == "placeholder" and all(user.op == "output" for user in node.users)
    ]  # which the first stage gives back, as no other one takes them
    order = sorted(groups)
    stages = [
        _stage(module, *place, groups[place], passed if place == order[0] else (), results, values)
        for place in order
    ]
    return Program(
        "torch",
        tuple(_name(node) for node in inputs),
        tuple(_name(node) for node in results),
        tuple(stages),
        values,
    )


def _check_result(leaf: Any) -> None:
    if leaf is not None and not isinstance(leaf, torch.fx.Node):
        raise ScopeError(f"a result is the constant {leaf!r}: return what the stages compute")


def _module(graph: Any) -> torch.fx.GraphModule:
    if isinstance(graph, torch.fx.GraphModule):
        return graph
    # Checks of its inputs would be an operation of no module.
    checked = "check_guards" in inspect.signature(graph.module).parameters
    module: torch.fx.GraphModule = graph.module(**({"check_guards": False} if checked else {}))
    return module


def _finder(
    module: torch.fx.GraphModule, machines: Machines | None
) -> Callable[[Node], str | None]:
    """The machine of a node."""
    if machines is None:
        if not any(_is_stage(module, node) for node in module.graph.nodes):
            raise ScopeError(
                "the program is in one piece: give machines=, by the paths of its modules, or cut "
                "it by torch.fx.passes.split_module"
            )
        return lambda node: str(node.target) if _is_stage(module, node) else None
    find = places.finder(machines, ".")
    return lambda node: _place(module, node, find)


def _is_stage(module: torch.fx.GraphModule, node: Node) -> bool:
    return node.op == "call_module" and hasattr(module.get_submodule(str(node.target)), "graph")


def _place(
    module: torch.fx.GraphModule, node: Node, find: Callable[[str], str | None]
) -> str | None:
    """Of an operator that runs graphs, such as a block under ``torch.no_grad``: that of all in
    them."""
    if node.op == "call_module":
        return find(_path(module, node))
    inside: dict[str, str] = {}
    for path in _paths(module, node):
        machine = find(path)
        if machine is not None:
            inside.setdefault(machine, path)
    if len(inside) > 1:
        names = " and ".join(path or "the program itself" for path in inside.values())
        raise ScopeError(
            f"a boundary inside {node.target}: {names} are on different machines; tensors cannot "
            "cross machines there, so end the block (torch.no_grad, torch.autocast) or the call at "
            "the boundary"
        )
    return next(iter(inside), None)


def _paths(module: torch.fx.GraphModule, node: Node) -> Iterator[str]:
    """Of the modules that a node came from, or those in the graphs that it runs."""
    own = _path(module, node)
    inner = [
        path
        for graph, _ in torch_writes.graphs_in(module, node)
        for each in graph.graph.nodes
        if each.op not in _NO_WORK and each.target is not operator.getitem
        for path in _paths(graph, each)
    ]
    # Of a block, the nodes know their modules. In a branch or a loop they may have none.
    block = str(node.target).startswith("wrap_with_")
    yield from (path if path or block else own for path in inner or [own])


def _path(module: torch.fx.GraphModule, node: Node) -> str:
    """Of the innermost module that a node came from."""
    if node.op == "call_module":
        return str(node.target)
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
    last = list(stack.values())[-1:]
    path = str(last[0][0]) if last else ""
    for root in ("L['self']", "_export_root"):
        path = "" if path == root else path.removeprefix(f"{root}.")
    return path


def _name(node: Node) -> str:
    """Placeholders of a program are called by their targets."""
    return str(node.target) if node.op == "placeholder" else str(node.name)


def _stage(
    module: torch.fx.GraphModule,
    turn: int,
    machine: str,
    group: Sequence[Node],
    passed: Sequence[Node],
    results: Sequence[Node],
    values: dict[str, Value],
) -> Stage:
    """The nodes as a module of their own; what they give to others joins ``values``. passed: inputs
    that it gives back."""
    inside = set(group)
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    inputs: list[str] = []
    for node in group:
        for taken in node.all_input_nodes:
            if taken in copies:
                continue
            if taken.op == "get_attr":
                copies[taken] = graph.node_copy(taken)
            else:
                copies[taken] = graph.placeholder(taken.name)
                inputs.append(_name(taken))
        copies[node] = graph.node_copy(node, lambda taken: copies[taken])
    for node in passed:
        copies[node] = graph.placeholder(node.name)
        inputs.append(_name(node))
    outputs = list(passed)
    outputs += [
        node
        for node in group
        if node in results or any(user not in inside and user.op != "output" for user in node.users)
    ]
    for node in outputs:
        if any(user not in inside and user.op != "output" for user in node.users):
            values[node.name] = _value(module, node)
    graph.output(tuple(copies[node] for node in outputs))
    run = torch.fx.GraphModule(module, graph)
    names = tuple(map(_name, outputs))

    def without_gradients(*given: Any) -> Sequence[Any]:
        with torch.no_grad():
            found: Sequence[Any] = run(*given)
            return [
                _laid_out(each, values[name]) if name in values else each
                for name, each in zip(names, found, strict=True)
            ]

    return Stage(machine, turn, tuple(inputs), names, without_gradients)


def _value(module: torch.fx.GraphModule, node: Node) -> Value:
    found = _meta(module, node)
    if isinstance(found, torch.Tensor) or hasattr(found, "memory_format"):  # fx's TensorMetadata
        shape = tuple(n if isinstance(n, int) else None for n in found.shape)
        strides = found.stride() if isinstance(found, torch.Tensor) else found.stride
        known = None not in shape and all(isinstance(each, int) for each in strides)
        order = _order(found.shape, strides) if known else None
        return Value(shape, str(found.dtype).removeprefix("torch."), order=order)
    for kinds, dtype in (
        ((bool, torch.SymBool), "bool"),
        ((int, torch.SymInt), "int64"),
        ((float, torch.SymFloat), "float64"),
    ):
        if isinstance(found, kinds):
            return Value((), dtype, scalar=True)
    if found is None:
        raise ScopeError(
            f"the shape of {node.name} is not known: make the program by torch.export, or run "
            "torch.fx.passes.shape_prop.ShapeProp on it"
        )
    raise ScopeError(
        f"{node.name} would cross machines, and a {type(found).__name__} cannot: put what makes it "
        "and what uses it on one"
    )


def _order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The axes from the largest stride to the smallest, of what fills its memory densely; None for
    C order, in which travels what does not."""
    axes = range(len(shape))
    for order in (tuple(axes), tuple(sorted(axes, key=lambda axis: -strides[axis]))):
        dense = _strides(shape, order)
        if all(shape[axis] == 1 or strides[axis] == dense[axis] for axis in axes):
            return None if order == tuple(axes) else order
    return None


def _strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Of what fills its memory densely with its axes in an order."""
    found = [1] * len(shape)
    step = 1
    for axis in reversed(order):
        found[axis] = step
        step *= shape[axis]
    return tuple(found)


def _laid_out(value: Any, planned: Value) -> Any:
    """A result of a stage with the strides that it has where it arrives: what is computed from it
    may depend on them, in its bits or in whether it can be viewed in another shape."""
    wrong = not isinstance(value, torch.Tensor) or value.ndim != len(planned.shape)
    if wrong or value.layout is not torch.strided:  # it is refused where it is sent
        return value
    order = planned.order
    if None in planned.shape:
        order = _order(value.shape, value.stride())
    strides = _strides(value.shape, range(value.ndim) if order is None else order)
    if value.stride() == strides or value.numel() == 0:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(
        value
    )


def _meta(module: torch.fx.GraphModule, node: Node) -> Any:
    """What tracing has noted of a node's value."""
    for key in ("val", "example_value", "tensor_meta"):
        if node.meta.get(key) is not None:
            return node.meta[key]
    if node.target is operator.getitem:
        taken: Any = node.args[0]
        whole = _meta(module, taken)
        return None if whole is None else whole[node.args[1]]
    if _is_stage(module, node):
        inner: Any = module.get_submodule(str(node.target))
        (output,) = (each for each in inner.graph.nodes if each.op == "output")
        return torch.fx.node.map_arg(output.args[0], lambda each: _meta(inner, each))
    return None
