# SPDX-License-Identifier: Apache-2.0
"""The functions of a TensorFlow graph, with the shapes that follow from what they are given. By
itself, a function knows of no variable what it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def
from tensorflow.python.ops.handle_data_util import get_resource_handle_data

import tensorflow as tf
from tensorwire.graph.tensorflow_steps import shape_of

v1 = tf.compat.v1


class Tensor(NamedTuple):
    """Of the whole program: an output of an operation, by its number."""

    operation: int
    name: str
    shape: tuple[int | None, ...] | None
    dtype: str
    holds: tuple[Any, Any] | None = None
    """Of a variable's handle: the type and the shape of the variable."""


class Body(NamedTuple):
    """Of a function: its graph, its arguments, and what it gives."""

    graph: Any
    inputs: list[Any]
    outputs: list[Any]
    control_outputs: list[Any]


def is_resource(tensor: Any) -> bool:
    return bool(tensor.dtype == tf.resource)


def tensor_of(operation: int, prefix: str, output: Any) -> Tensor:
    name = prefix + output.name.removesuffix(":0")
    holds = _holds(output) if is_resource(output) else None
    return Tensor(operation, name, shape_of(output.shape), output.dtype.base_dtype.name, holds)


def _holds(handle: Any) -> tuple[Any, Any] | None:
    known = get_resource_handle_data(handle).shape_and_type
    if len(known) != 1:  # of a queue, or of nothing known
        return None
    return tf.as_dtype(known[0].dtype), tf.TensorShape(known[0].shape)


class Functions:
    """Those of a graph, also within each other."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        library = graph.as_graph_def().library
        self._definitions = {each.signature.name: each for each in library.function}

    def body(self, name: str, given: Sequence[Tensor | None]) -> Body:
        """given: what comes for each of its arguments; None: it is not known. A branch that is
        never taken may contradict the shapes of that: it has those that it has by itself."""
        definition = self._definitions[name]
        with self._graph.as_default():
            body, flat = function_def_to_graph_def(definition)
        for node in body.node:
            node.attr.pop("_class", None)  # what it lies beside may be in another graph
        try:
            return _imported(definition, body, flat, given)
        except ValueError:
            return _imported(definition, body, flat, [None] * len(given))


def _imported(
    definition: Any, body: Any, flat: Mapping[str, str], given: Sequence[Tensor | None]
) -> Body:
    signature = definition.signature
    graph = tf.Graph()
    with graph.as_default():
        arguments = {
            f"{each.name}:0": _argument(tf.as_dtype(each.type), known)
            for each, known in zip(signature.input_arg, given, strict=True)
        }
        v1.import_graph_def(body, input_map=arguments, name="")

    def named(tensor: str) -> Any:
        return arguments[tensor] if tensor in arguments else graph.get_tensor_by_name(tensor)

    return Body(
        graph,
        list(arguments.values()),
        [named(flat[definition.ret[each.name]]) for each in signature.output_arg],
        [
            graph.get_operation_by_name(definition.control_ret[each])
            for each in signature.control_output
        ],
    )


def _argument(dtype: Any, known: Tensor | None) -> Any:
    if known is not None and known.holds is not None:
        variable, shape = known.holds
        return tf.raw_ops.VarHandleOp(dtype=variable, shape=shape, name="tensorwire_argument")
    shape = known.shape if known is not None and dtype != tf.resource else None
    return v1.placeholder(dtype, shape, name="tensorwire_argument")
