# SPDX-License-Identifier: Apache-2.0
"""Values of PyTorch programs that are written after they were made."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Final, TypeVar

import torch.fx

import torch
from tensorwire.graph.places import ScopeError

Node = Any
"""``torch.fx.Node``."""
Place = TypeVar("Place")
_WRITERS: Final = frozenset(
    [
        operator.setitem,
        operator.iadd,
        operator.isub,
        operator.imul,
        operator.imatmul,
        operator.itruediv,
        operator.ifloordiv,
        operator.imod,
        operator.ipow,
        operator.ilshift,
        operator.irshift,
        operator.iand,
        operator.ior,
        operator.ixor,
    ]
)


def check(module: torch.fx.GraphModule, places: Mapping[Node, Place]) -> None:
    """ScopeError where a value is written in place and used elsewhere, so that its user could see
    it before or after, and not as in one process. A value that goes on from what has written it is
    sent after that, and is no matter. places: of the nodes that compute, in their order."""
    number = {node: at for at, node in enumerate(places)}
    origin = _origins(module)
    for node, place in places.items():
        for written in _written(module, node):
            first = origin[written]
            before, after = _reached(node, "all_input_nodes"), _reached(node, "users")
            for same in (each for each in origin if origin[each] is first and each not in after):
                for user in same.users:
                    if user is node or user in before or places.get(user) == place:
                        continue
                    late = number.get(user, len(number)) > number[node]
                    if late and places.get(first) == place:
                        continue  # what a stage has made is sent when all of it is done
                    raise ScopeError(
                        f"{node.name} writes {first.name} in place, which {user.name} uses on "
                        "another machine, or in another round: make a new tensor there instead"
                    )


def _reached(node: Node, way: str) -> set[Node]:
    found = {node}
    waiting = [node]
    while waiting:
        for each in getattr(waiting.pop(), way):
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


def _origins(module: torch.fx.GraphModule) -> dict[Node, Node]:
    """Of each node the one whose memory its value lies in."""
    origin: dict[Node, Node] = {}
    attributes: dict[str, Node] = {}
    inside: dict[torch.fx.GraphModule, dict[Node, Node]] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            origin[node] = attributes.setdefault(str(node.target), node)
            continue
        lent = next(_lent(module, node, inside), None)
        origin[node] = node if lent is None else origin[lent]
    return origin


def graphs_in(
    module: torch.fx.GraphModule, node: Node
) -> Iterator[tuple[torch.fx.GraphModule, Sequence[Node]]]:
    """Graphs that a node runs, as what ``torch.no_grad`` and ``torch.cond`` come to has them for
    arguments, or as a submodule; each with the values that it is given."""
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        if isinstance(called, torch.fx.GraphModule):
            yield called, _nodes((node.args, node.kwargs))
        return
    found: list[torch.fx.GraphModule] = []
    operands: list[Node] = []
    for value in node.args:
        inner = _graph_of(module, value)
        if inner is not None:
            found.append(inner)
            operands.clear()  # what stands before the last graph, such as a condition, is its own
        else:
            operands += _nodes(value)
    yield from ((inner, operands) for inner in found)


def _nodes(value: Any) -> list[Node]:
    """In an argument, or in several."""
    found: list[Node] = []

    def note(node: Node) -> Node:
        found.append(node)
        return node

    torch.fx.node.map_arg(value, note)
    return found


def _graph_of(module: torch.fx.GraphModule, value: object) -> torch.fx.GraphModule | None:
    if not isinstance(value, torch.fx.Node) or value.op != "get_attr":
        return None
    found: Any = module
    for name in str(value.target).split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, torch.fx.GraphModule) else None


def _operands_of(
    inner: torch.fx.GraphModule, operands: Sequence[Node], wanted: Set[Node]
) -> Iterator[Node]:
    """Those values given to a graph that are some of its placeholders; all of them, where nothing
    says which is which."""
    inputs = [each for each in inner.graph.nodes if each.op == "placeholder"]
    if len(inputs) == len(operands):
        yield from (given for given, own in zip(operands, inputs, strict=True) if own in wanted)
    elif wanted & set(inputs):
        yield from operands


def _lent(
    module: torch.fx.GraphModule,
    node: Node,
    inside: dict[torch.fx.GraphModule, dict[Node, Node]],
) -> Iterator[Node]:
    """Arguments in whose memory the result lies. inside: the origins in graphs that nodes run, as
    far as they are known: a graph with many results is looked into once."""
    whole = node.args[0] if node.target is operator.getitem else node
    part = node.args[1] if node.target is operator.getitem else None
    for inner, operands in graphs_in(module, whole) if isinstance(whole, torch.fx.Node) else ():
        (output,) = (each for each in inner.graph.nodes if each.op == "output")
        found = output.args[0]
        if isinstance(found, tuple | list):
            found = found[part] if isinstance(part, int) else None
        if isinstance(found, torch.fx.Node):
            if inner not in inside:
                inside[inner] = _origins(inner)
            yield from _operands_of(inner, operands, {inside[inner][found]})
    if node.target in (operator.getitem, getattr) or _in_place(module, node):
        yield from (each for each in node.args[:1] if isinstance(each, torch.fx.Node))
    for schema in _schemas(node):
        if any(each.alias_info is not None for each in schema.returns):
            yield from (value for value, info in _arguments(node, schema) if info is not None)


def _written(module: torch.fx.GraphModule, node: Node) -> Iterator[Node]:
    for inner, operands in graphs_in(module, node):
        origin = _origins(inner)
        changed = {origin[each] for own in inner.graph.nodes for each in _written(inner, own)}
        yield from _operands_of(inner, operands, changed)
    if node.target in _WRITERS or _in_place(module, node):
        yield node.args[0]
    for schema in _schemas(node):
        yield from (value for value, info in _arguments(node, schema) if info and info.is_write)


def _in_place(module: torch.fx.GraphModule, node: Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(module.get_submodule(str(node.target)), "inplace", False))
    return bool(node.kwargs.get("inplace"))


def _arguments(node: Node, schema: Any) -> Iterator[tuple[Node, Any]]:
    for at, argument in enumerate(schema.arguments):
        if at < len(node.args) and not argument.kwarg_only:
            value = node.args[at]
        else:
            value = node.kwargs.get(argument.name)
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, torch.fx.Node):
                yield each, argument.alias_info


def _schemas(node: Node) -> list[Any]:
    """What PyTorch says of the operators that a node may be."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return [target._schema]
    if node.op not in ("call_function", "call_method"):
        return []
    name = target if node.op == "call_method" else getattr(target, "__name__", "")
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    if packet is None or name.startswith("__"):
        return []
    return [getattr(packet, each)._schema for each in packet.overloads()]
