# SPDX-License-Identifier: Apache-2.0
"""Values of PyTorch programs that are written after they were made."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
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
                    if user.op == "output" and same not in number:
                        continue  # given back as it came
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
    for node in module.graph.nodes:
        if node.op == "get_attr":
            origin[node] = attributes.setdefault(str(node.target), node)
            continue
        lent = next(_lent(module, node), None)
        origin[node] = node if lent is None else origin[lent]
    return origin


def _lent(module: torch.fx.GraphModule, node: Node) -> Iterator[Node]:
    """Arguments in whose memory the result lies."""
    if node.target in (operator.getitem, getattr) or _in_place(module, node):
        yield from (each for each in node.args[:1] if isinstance(each, torch.fx.Node))
    for schema in _schemas(node):
        if any(each.alias_info is not None for each in schema.returns):
            yield from (value for value, info in _arguments(node, schema) if info is not None)


def _written(module: torch.fx.GraphModule, node: Node) -> Iterator[Node]:
    inner = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    if isinstance(inner, torch.fx.GraphModule):
        origin = _origins(inner)
        changed = {origin[each] for own in inner.graph.nodes for each in _written(inner, own)}
        inputs = [each for each in inner.graph.nodes if each.op == "placeholder"]
        for value, own in zip(node.args, inputs, strict=False):
            if own in changed and isinstance(value, torch.fx.Node):
                yield value
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
