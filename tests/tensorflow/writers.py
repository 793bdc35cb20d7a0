# SPDX-License-Identifier: Apache-2.0
"""Every operation of TensorFlow that writes to a variable, found in its registry, with variables
and arguments for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

SHAPE = (9, 1024)
"""36 KiB of floats: large enough to be lent."""
ROWS = (1, 4)

# They need a variable of another kind, are given none of numbers, or write nothing.
LEFT_OUT = {
    "CountUpTo",  # of one integer
    "DestroyTemporaryVariable",  # has a test of its own
    "IsVariableInitialized",
    "NegTrain",  # of word2vec, which needs a vocabulary
    "SdcaShrinkL1",
    "DebugGradientRefIdentity",
}
SCALARS = {"lr_power": -0.5}


@dataclass(frozen=True)
class Writer:
    """name: of the operation. make: adds its variables to the graph, which begin with ``start``,
    and gives them with the function that adds the operation."""

    name: str
    make: Callable[[], tuple[list[Any], Callable[[], Any]]]


def start(tf: Any, index: int) -> Any:
    """Positive numbers, other ones for each variable, that are not the graph's constants."""
    size = SHAPE[0] * SHAPE[1]
    return tf.reshape(tf.linspace(0.5 + index, 1.5 + index, size), SHAPE) * 1.0


def writers(tf: Any, *, resource: bool) -> Iterator[Writer]:
    """Of reference variables, or of resource variables."""
    from tensorflow.python.framework import op_def_registry

    for name in sorted(dir(tf.raw_ops)):
        definition = op_def_registry.get(name)
        if definition is None or definition.is_stateful != resource:
            continue
        if resource:
            writes = name.startswith(("ResourceApply", "ResourceSparseApply", "ResourceScatter"))
            writes |= name.startswith("Assign") and name.endswith("VariableOp")
            writes |= name == "ResourceStridedSliceAssign"
        else:
            numbers = (arg for arg in definition.input_arg if arg.is_ref and arg.type_attr)
            writes = any(numbers) and not name.startswith("Ref")
        if writes and name not in LEFT_OUT:
            yield Writer(name, partial(_made, tf, definition, resource))


def _made(tf: Any, definition: Any, resource: bool) -> tuple[list[Any], Callable[[], Any]]:
    arguments: dict[str, Any] = {}
    variables: list[Any] = []
    sparse = any(arg.name == "indices" for arg in definition.input_arg)
    for arg in definition.input_arg:
        if arg.is_ref or arg.type == tf.resource.as_datatype_enum:
            index = len(variables)
            variable = tf.compat.v1.Variable(
                start(tf, index),
                name=f"{definition.name}_{arg.name}",
                trainable=False,
                use_resource=resource,
            )
            variables.append(variable)
            arguments[arg.name] = variable.handle if resource else variable
        else:
            arguments[arg.name] = _argument(tf, definition.name, arg.name, sparse)

    def write() -> Any:
        made = getattr(tf.raw_ops, definition.name)(**arguments)
        return made if resource else made.op

    return variables, write


def _argument(tf: Any, operation: str, name: str, sparse: bool) -> Any:
    rows = (len(ROWS), SHAPE[1])
    if name in ("begin", "end", "strides"):
        return tf.constant({"begin": [1], "end": [4], "strides": [1]}[name])
    if name == "indices":
        return tf.constant([[row] for row in ROWS] if "Nd" in operation else ROWS)
    if name in ("grad", "updates", "value", "delta"):
        shape = (3, SHAPE[1]) if "StridedSlice" in operation else rows if sparse else SHAPE
        # Under its least value for Min, over its largest for Max: whatever it is, it counts.
        number = -0.25 if "Min" in operation else 7.25 if "Max" in operation else 0.25
        return tf.fill(shape, number)
    if name == "global_step":
        return tf.constant(1, tf.int64)
    return tf.constant(SCALARS.get(name, 0.125))
