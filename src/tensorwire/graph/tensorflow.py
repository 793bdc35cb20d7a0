# SPDX-License-Identifier: Apache-2.0
"""What crosses the machines of a TensorFlow graph, as its devices and shapes say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorwire.graph import places, tensorflow_steps
from tensorwire.graph.edge import Edge, Per
from tensorwire.graph.places import Machines, Operation
from tensorwire.graph.tensorflow_functions import Functions, Tensor, is_resource, tensor_of
from tensorwire.graph.tensorflow_steps import in_loops, shape_of, task

v1 = tf.compat.v1

_LOOPS = ("While", "StatelessWhile")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_MOST_DEEP = 64
"""Functions within functions."""


def takes(graph: object) -> bool:
    if isinstance(graph, (list, tuple)):
        return bool(graph) and all(isinstance(each, v1.RunMetadata) for each in graph)
    return isinstance(
        graph,
        (
            tf.Graph,
            v1.GraphDef,
            v1.RunMetadata,
            tf.types.experimental.ConcreteFunction,
        ),
    )


def edges(
    graph: Any, machines: Machines | None = None, fetches: Sequence[Any] | None = None
) -> list[Edge]:
    """As ``tensorwire.graph.edges``. Of a ``RunMetadata``, or several of one graph, what was sent;
    of others what the placer would have sent before it optimizes anything.

    An operation is where its device says, else with the resource that it uses, else where its
    result is used. Functions and loops are opened. fetches: tensors, operations or names; what they
    do not need is left out.
    """
    if isinstance(graph, v1.RunMetadata):
        return tensorflow_steps.sent([graph], machines)
    if isinstance(graph, (list, tuple)):
        return tensorflow_steps.sent(graph, machines)
    if isinstance(graph, v1.GraphDef):
        imported = tf.Graph()
        with imported.as_default():
            v1.import_graph_def(graph, name="")
        graph = imported
    elif not isinstance(graph, tf.Graph):
        function = graph.graph
        fetches = [*function.outputs, *function.control_outputs] if fetches is None else fetches
        graph = function
    wanted = None if fetches is None else [_operation(graph, each) for each in fetches]
    homes = _homes(graph)
    flat = _Flat(_device_finder(graph, homes.values(), machines), homes, Functions(graph))
    flat.add(graph, {}, wanted)
    return flat.edges()


def _operation(graph: Any, fetch: Any) -> Any:
    if isinstance(fetch, str):
        fetch = graph.as_graph_element(fetch, allow_tensor=True, allow_operation=True)
    return getattr(fetch, "op", fetch)


def _homes(graph: Any) -> dict[str, str]:
    captures = getattr(graph, "captures", None) or ()
    return {
        inner.op.name: outer.device
        for outer, inner in captures
        if outer.dtype == tf.resource and isinstance(outer, tf.__internal__.EagerTensor)
    }


def _device_finder(
    graph: Any, homes: Iterable[str], machines: Machines | None
) -> Callable[[str], str | None]:
    """The machine of a device. Where no device of the graph has a task, devices are machines."""
    find = places.finder(machines, ":")
    devices = {op.device for op in graph.get_operations()} | set(homes)
    devices |= {
        node.device
        for function in graph.as_graph_def().library.function
        for node in function.node_def
    }
    if any(task(device) for device in devices):
        return lambda device: find(task(device)) if task(device) else None
    return lambda device: find(_local(device)) if _local(device) else None


def _local(device: str) -> str:
    """``CPU:1`` of ``/device:CPU:1``."""
    found = re.search(r"/?(?:device:)?([A-Za-z]+:\d+)$", device)
    return found[1].upper() if found else ""


@dataclass
class _Found:
    name: str
    place: str | None
    per: Per
    takes: list[Tensor] = field(default_factory=list)
    waits_for: list[int] = field(default_factory=list)
    made: Tensor | None = None
    """Of a variable of a loop: itself."""


@dataclass
class _Flat:
    """A graph with the functions in it."""

    find: Callable[[str], str | None]
    homes: Mapping[str, str]
    """The devices of variables that a function has from outside, by its placeholders."""
    functions: Functions
    found: list[_Found] = field(default_factory=list)
    depth: int = 0

    def add(
        self,
        graph: Any,
        given: Mapping[str, Tensor],
        wanted: Iterable[Any] | None,
        prefix: str = "",
        looping: bool = False,
    ) -> dict[str, Tensor]:
        """The operations of a graph or of a function; its tensors by their names. given: what its
        placeholders stand for."""
        operations = graph.get_operations()
        if wanted is not None:
            needed = _needed(wanted)
            operations = [op for op in operations if op in needed]
        loops = in_loops({op.name: (op.type, _names(op)) for op in operations})
        tensors = dict(given)
        last: dict[str, int] = {}
        """The number of each operation that others may wait for."""
        links: list[tuple[_Found, Any]] = []
        for op in operations:
            if op.outputs and op.outputs[0].name in given:
                continue
            per: Per = "iteration" if looping or op.name in loops else "step"
            one = _Found(prefix + op.name, self._place(op, tensors), per)
            number = len(self.found)
            self.found.append(one)
            last[op.name] = number
            if not self._open(op, number, tensors, looping or per == "iteration"):
                links.append((one, op))
                for output in op.outputs:
                    tensors.setdefault(output.name, tensor_of(number, prefix, output))
        for one, op in links:
            taken = [each for each in op.inputs if not (op.type in _LOOPS and is_resource(each))]
            one.takes += [tensors[each.name] for each in taken if each.name in tensors]
            one.waits_for += [last[each.name] for each in op.control_inputs if each.name in last]
        return tensors

    def _place(self, op: Any, tensors: Mapping[str, Tensor]) -> str | None:
        # The placer puts a resource's operations on its device. Branches and loops only hand it on:
        # they are taken apart before that, and their results are on their own device.
        for each in () if op.type in (*_BRANCHES, *_LOOPS) else op.inputs:
            if is_resource(each) and each.name in tensors:
                return self.found[tensors[each.name].operation].place
        device = self.homes.get(op.name) or op.device
        return self.find(device) if device else None

    def _open(self, op: Any, number: int, tensors: dict[str, Tensor], looping: bool) -> bool:
        """Adds the functions that an operation calls; False: it calls none."""
        if op.type not in (*_LOOPS, *_BRANCHES, *_CALLS) or self.depth >= _MOST_DEEP:
            return False
        one = self.found[number]
        inputs: list[Tensor | None] = [tensors.get(each.name) for each in op.inputs]
        if op.type in _BRANCHES:
            one.takes += [each for each in inputs[:1] if each is not None]
            del inputs[0]
        variables = self._variables(op, one, inputs) if op.type in _LOOPS else []
        loop = looping or bool(variables)
        results: list[Tensor | None] = []
        self.depth += 1
        for name in _functions(op):
            known = [self._result(each) for each in variables] if variables else inputs
            inner = self.functions.body(name, known)
            given = {
                mine.name: theirs
                for mine, theirs in zip(inner.inputs, known, strict=True)
                if theirs is not None
            }
            wanted = [*(each.op for each in inner.outputs), *inner.control_outputs]
            made = self.add(inner.graph, given, wanted, f"{one.name}/", loop)
            results = [made.get(each.name) for each in inner.outputs]
            if op.type in _BRANCHES:  # what each branch makes comes to where the branching is
                for at, (output, result) in enumerate(zip(op.outputs, results, strict=True)):
                    if result is not None and not is_resource(output):
                        one.takes.append(result)
                        own = tensor_of(number, one.name.removesuffix(op.name), output)
                        results[at] = own._replace(shape=own.shape or result.shape)
        self.depth -= 1
        if variables:  # the last function was the body: what it makes goes round
            for variable, result in zip(variables, results, strict=True):
                self.found[variable].takes += [result] if result is not None else []
            for variable, output in zip(variables, op.outputs, strict=True):
                if is_resource(output):  # it is used where it is, also after the loop
                    tensors[output.name] = self._result(variable)
                else:
                    one.takes.append(self._result(variable))
            return False
        for output, result in zip(op.outputs, results, strict=True):
            if result is not None:
                shape = shape_of(output.shape) or result.shape
                tensors[output.name] = result._replace(shape=shape)
        return True

    def _variables(self, op: Any, one: _Found, inputs: Sequence[Tensor | None]) -> list[int]:
        """An operation for each variable of a loop, where the loop is; a resource stays where it
        is."""
        numbers = []
        for number, (given, output) in enumerate(zip(inputs, op.outputs, strict=True)):
            place, holds = one.place, None
            if given is not None and is_resource(output):
                place, holds = self.found[given.operation].place, given.holds
            variable = _Found(f"{one.name}/variable_{number}", place, "iteration")
            variable.takes += [given] if given is not None else []
            made = tensor_of(len(self.found), "", output)
            variable.made = made._replace(name=variable.name, holds=holds)
            numbers.append(len(self.found))
            self.found.append(variable)
        return numbers

    def _result(self, variable: int) -> Tensor:
        made = self.found[variable].made
        assert made is not None
        return made

    def edges(self) -> list[Edge]:
        operations = [
            Operation(one.name, one.place, [each.operation for each in one.takes])
            for one in self.found
        ]
        where = places.settle(operations)
        edges: dict[tuple[str, str, str], Edge] = {}
        for one, target in zip(self.found, where, strict=True):
            sources = set()
            for each in one.takes:
                source = where[each.operation]
                sources.add(each.operation)
                if source != target:
                    key = (each.name, source, target)
                    per = self.found[each.operation].per
                    edges[key] = Edge(
                        each.name, source, target, each.shape, each.dtype, "inferred", per
                    )
            for number in one.waits_for:
                if where[number] != target and number not in sources:
                    waited = self.found[number]
                    key = (f"^{waited.name}", where[number], target)
                    edges[key] = Edge(*key, (0,), "float32", "inferred", waited.per)
        return list(edges.values())


def _needed(wanted: Iterable[Any]) -> set[Any]:
    found: set[Any] = set()
    left = list(wanted)
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            left += [each.op for each in op.inputs]
            left += op.control_inputs
    return found


def _names(op: Any) -> list[str]:
    return [each.op.name for each in op.inputs] + [each.name for each in op.control_inputs]


def _functions(op: Any) -> list[str]:
    if op.type in _LOOPS:
        return [op.get_attr("cond").name, op.get_attr("body").name]
    if op.type in ("If", "StatelessIf"):
        return [op.get_attr("then_branch").name, op.get_attr("else_branch").name]
    if op.type in ("Case", "StatelessCase"):
        return [each.name for each in op.get_attr("branches")]
    return [op.get_attr("f").name]
