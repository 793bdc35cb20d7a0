# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations on TensorFlow's tensors, eagerly and in ``tf.function``.

In a function each is one Python call, which TensorFlow runs in the program's order. XLA compiles
none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tensorflow as tf
from tensorwire.horovod import asking, negotiation, process, trees
from tensorwire.horovod.asking import OPS, Average
from tensorwire.horovod.performing import Array
from tensorwire.horovod.process import ProcessSet, global_process_set
from tensorwire.horovod.tensorflow.compression import Compression

Tensor = Any
Run = Callable[..., Sequence[Array]]


def _call(run: Run, tensors: Sequence[Tensor], kinds: Sequence[Any]) -> list[Tensor]:
    """``run`` on the arrays of the tensors, now or when the function runs."""

    def on_arrays(*values: Any) -> Sequence[Array]:
        return run(*map(np.asarray, values))  # what has no axes comes as a NumPy scalar

    if tf.executing_eagerly():
        found = on_arrays(*(tensor.numpy() for tensor in tensors))
        return [tf.convert_to_tensor(each) for each in found]
    result: list[Tensor] = tf.numpy_function(
        tf.autograph.experimental.do_not_convert(on_arrays),
        list(tensors),
        list(kinds),
        stateful=True,
    )
    return result


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    return [tf.convert_to_tensor(value) for value in values]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """The tensors of all ranks, reduced, in one operation; averaged unless ``op`` says otherwise.
    Gradients go through it. ``device_dense`` and ``device_sparse`` have no effect."""
    reduction = asking.operation(average, op)
    kind = negotiation.ALLREDUCE
    word = asking.named(kind, name, process_set)

    def reduced(which: str, given: Sequence[Tensor]) -> list[Tensor]:
        packed = [compression.compress(each) for each in given]

        def run(*arrays: Array) -> list[Array]:
            found: list[Array] = asking.begin(
                kind,
                which,
                arrays,
                process_set=process_set,
                op=reduction,
                prescale=prescale_factor,
                postscale=postscale_factor,
            ).result()
            return found

        results = _call(run, [each for each, _ in packed], [each.dtype for each, _ in packed])
        for result, (tensor, _) in zip(results, packed, strict=True):
            result.set_shape(tensor.shape)
        return [
            compression.decompress(result, context)
            for result, (_, context) in zip(results, packed, strict=True)
        ]

    @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
    def differentiable(*given: Tensor) -> Any:
        def backward(*gradients: Tensor) -> list[Tensor]:
            return reduced(f"{word}.gradient", gradients)

        return reduced(word, given), backward

    result: list[Tensor] = differentiable(*_tensors(tensors))
    return list(result)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The tensors of all ranks, reduced. Of ``tf.IndexedSlices``, those of all ranks."""
    if isinstance(tensor, tf.IndexedSlices):
        if asking.operation(average, op) not in ("average", "sum"):
            raise NotImplementedError(
                "IndexedSlices are added up or averaged; with sparse_as_dense gradients are dense"
            )
        values = allgather(tensor.values, name and f"{name}.values", process_set)
        indices = allgather(tensor.indices, name and f"{name}.indices", process_set)
        if asking.operation(average, op) == "average":
            # Asked when the function runs: in an elastic job the size changes.
            (share,) = _call(lambda: [np.array(1.0 / process_set.size())], [], [tf.float64])
            values = values * tf.cast(share, values.dtype)
        return tf.IndexedSlices(values, indices, tensor.dense_shape)
    (found,) = grouped_allreduce(
        [tensor],
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
    )
    return found


def allgather(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The tensors of all ranks, one behind the other; their first axes may differ."""
    kind = negotiation.ALLGATHER
    word = asking.named(kind, name, process_set)
    tensor = tf.convert_to_tensor(tensor)

    def run(array: Array) -> Sequence[Array]:
        rows = [np.atleast_1d(array)]
        found: list[Array] = asking.begin(kind, word, rows, process_set=process_set).result()
        return found

    (result,) = _call(run, [tensor], [tensor.dtype])
    result.set_shape([None, *tensor.shape[1:]])
    return result


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The root's tensor."""
    return _broadcasts([tensor], root_rank, name, process_set)[0]


def _broadcasts(
    values: Sequence[Any], root: int, name: str | None, process_set: ProcessSet
) -> list[Tensor]:
    kind = negotiation.BROADCAST
    tensors = _tensors(values)
    words = [f"{asking.named(kind, name, process_set)}.{i}" for i in range(len(tensors))]

    def run(*arrays: Array) -> list[Array]:
        futures = [
            asking.begin(kind, word, [array], process_set=process_set, root=root)
            for word, array in zip(words, arrays, strict=True)
        ]
        return [future.result()[0] for future in futures]

    results = _call(run, tensors, [each.dtype for each in tensors])
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape(tensor.shape)
    return results


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """The root's values, into the variables of all ranks."""
    if callable(variables):  # as Keras 3 has those of an optimizer, and Keras 2 had them
        variables = variables()
    variables = list(variables)
    found = _broadcasts(variables, root_rank, None, process_set)
    for variable, value in zip(variables, found, strict=True):
        variable.assign(value)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Rows for each rank, for rows from each. With ``splits`` a pair: the second one says how many
    have come from each."""
    kind = negotiation.ALLTOALL
    word = asking.named(kind, name, process_set)
    tensor = tf.convert_to_tensor(tensor)

    def run(array: Array, *given: Array) -> Sequence[Array]:
        gives = asking.shares(len(array), given[0].tolist() if given else None, process_set.size())
        found: list[Array] = asking.begin(
            kind, word, [array], process_set=process_set, numbers=gives
        ).result()
        return found

    more = [] if splits is None else [tf.convert_to_tensor(splits)]
    found, received = _call(run, [tensor, *more], [tensor.dtype, tf.int32])
    found.set_shape([None, *tensor.shape[1:]])
    return found if splits is None else (found, received)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Rows of the reduction: the first ranks have one more where they cannot be shared evenly."""
    kind = negotiation.REDUCESCATTER
    word = asking.named(kind, name, process_set)
    packed, context = compression.compress(tf.convert_to_tensor(tensor))

    def run(array: Array) -> Sequence[Array]:
        found: list[Array] = asking.begin(
            kind,
            word,
            [array],
            process_set=process_set,
            op=OPS[op],
            prescale=prescale_factor,
            postscale=postscale_factor,
        ).result()
        return found

    (result,) = _call(run, [packed], [packed.dtype])
    result.set_shape([None, *packed.shape[1:]])
    return compression.decompress(result, context)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's object: of numbers, text, bytes, None and arrays, in lists, tuples, sets and
    dicts. TypeError, on all ranks, says what in it cannot travel."""
    objects = _gathered(obj if process.rank() == root_rank else None, name, process_set)
    members = process.runtime().members(process.identifier(process_set))
    return objects[members.index(root_rank)]


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Objects of all ranks, in their order, as :func:`broadcast_object` takes them."""
    return _gathered(obj, name, process_set)


def _gathered(obj: Any, name: str | None, process_set: ProcessSet) -> list[Any]:
    def array_of(leaf: Any) -> Any:
        return leaf.numpy() if isinstance(leaf, tf.Tensor | tf.Variable) else leaf

    try:
        data, failed = trees.encode(obj, array_of), 0
    except TypeError as error:  # the others are told: they would wait for ever
        data, failed = str(error).encode(), 1
    word = asking.named("object", name, process_set)
    arrays: list[Array] = [
        np.array([[len(data), failed]], np.int64),
        np.frombuffer(data, np.uint8),
    ]
    heads, everything = asking.begin(
        negotiation.ALLGATHER, word, arrays, process_set=process_set
    ).result()
    found, at = [], 0
    for length, bad in heads.tolist():
        part = everything[at : at + length].tobytes()
        at += length
        if bad:
            raise TypeError(part.decode())
        found.append(trees.decode(part))
    return found
