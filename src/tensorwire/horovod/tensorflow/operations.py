# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations on TensorFlow's tensors, eagerly and in ``tf.function``.

In a function each is one Python call, which TensorFlow runs in the program's order. XLA compiles
none of them.
"""

from __future__ import annotations

import weakref
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

# Names, by graph. Each call waits for the one before: one that waits for other ranks holds a
# thread of TensorFlow, and ranks that hold all of theirs in different calls would wait for ever.
# TensorFlow itself keeps the order in functions, but not in those that it makes for gradients.
_last_calls: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def _call(run: Run, tensors: Sequence[Tensor], kinds: Sequence[Any]) -> list[Tensor]:
    """``run`` on the arrays of the tensors, now or when the function runs."""

    def on_arrays(*values: Any) -> Sequence[Array]:
        return run(*map(np.asarray, values))  # what has no axes comes as a NumPy scalar

    if tf.executing_eagerly():
        found = on_arrays(*(tensor.numpy() for tensor in tensors))
        return [tf.convert_to_tensor(each) for each in found]
    graph = tf.compat.v1.get_default_graph()
    # In others each run takes what it needs of the graph, and no more.
    before = _last_calls.get(graph) if graph.building_function else None
    with tf.control_dependencies([graph.get_operation_by_name(before)] if before else []):
        result: list[Tensor] = tf.numpy_function(
            tf.autograph.experimental.do_not_convert(on_arrays),
            list(tensors),
            list(kinds),
            stateful=True,
        )
    _last_calls[graph] = result[0].op.name
    return result


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    return [tf.convert_to_tensor(value) for value in values]


def _number(of: Callable[[], float], kind: Any) -> Tensor:
    """Asked when the function runs: in an elastic job ranks and their number change."""
    (found,) = _call(lambda: [np.array(of(), kind.as_numpy_dtype)], [], [kind])
    found.set_shape([])
    return found


def _differentiable(forward: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
    """``forward`` of the tensors: it returns what it makes of them, and what makes their gradients
    of its gradients."""
    apply: Any = tf.custom_gradient(forward)
    return apply(*tensors)


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

    def differentiable(which: str, given: Sequence[Tensor]) -> list[Tensor]:
        def forward(*given: Tensor) -> Any:
            def backward(*gradients: Tensor) -> list[Tensor]:
                return differentiable(f"{which}.gradient", _tensors(gradients))

            return reduced(which, given), backward

        return list(_differentiable(forward, given))

    return differentiable(word, _tensors(tensors))


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
            share = _number(lambda: 1.0 / process_set.size(), tf.float64)
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


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """The tensors of all ranks, one behind the other, in one operation; the first axes of each may
    differ. The gradient is the average of all ranks', of this rank's rows."""
    kind = negotiation.ALLGATHER
    word = asking.named(kind, name, process_set)

    def run(*arrays: Array) -> Sequence[Array]:
        rows = [np.atleast_1d(array) for array in arrays]
        found: list[Array] = asking.begin(kind, word, rows, process_set=process_set).result()
        return found

    def forward(*given: Tensor) -> Any:
        def backward(*gradients: Tensor) -> list[Tensor]:
            averages = grouped_allreduce(
                gradients, op=Average, name=f"{word}.gradient", process_set=process_set
            )
            rows = tf.stack([tf.size(each) if each.shape.rank == 0 else tf.shape(each)[0]
                             for each in given])  # fmt: skip
            counts = allgather(rows[tf.newaxis], f"{word}.rows", process_set)
            before = tf.reduce_sum(counts[: _number(process_set.rank, tf.int32)], 0)
            return [
                tf.reshape(average[before[i] : before[i] + rows[i]], tf.shape(each))
                for i, (average, each) in enumerate(zip(averages, given, strict=True))
            ]

        results = _call(run, given, [each.dtype for each in given])
        for result, each in zip(results, given, strict=True):
            result.set_shape([None, *each.shape[1:]])
        return results, backward

    return list(_differentiable(forward, _tensors(tensors)))


def allgather(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The tensors of all ranks, one behind the other; their first axes may differ. The gradient is
    that of :func:`grouped_allgather`."""
    return grouped_allgather([tensor], name, process_set)[0]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The root's tensor. Its gradient is the average of all ranks' at the root, and zero
    elsewhere."""
    word = asking.named(negotiation.BROADCAST, name, process_set)

    def forward(given: Tensor) -> Any:
        def backward(gradient: Tensor) -> Tensor:
            average = allreduce(
                gradient, op=Average, name=f"{word}.gradient", process_set=process_set
            )
            is_root = _number(lambda: process.rank() == root_rank, tf.bool)
            return tf.where(is_root, average, tf.zeros_like(average))

        (result,) = _broadcasts([given], root_rank, word, process_set)
        return result, backward

    return _differentiable(forward, _tensors([tensor]))


def _broadcasts(
    tensors: Sequence[Tensor], root: int, word: str, process_set: ProcessSet
) -> list[Tensor]:
    kind = negotiation.BROADCAST
    words = [f"{word}.{i}" for i in range(len(tensors))]

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
    _assign_of_root(list(variables), root_rank, process_set)


def _assign_of_root(variables: Sequence[Any], root: int, process_set: ProcessSet) -> list[Any]:
    word = asking.named(negotiation.BROADCAST, None, process_set)
    found = _broadcasts(_tensors(variables), root, word, process_set)
    return [variable.assign(value) for variable, value in zip(variables, found, strict=True)]


def broadcast_global_variables(root_rank: int) -> Any:
    """An operation for a session of TensorFlow 1: the root's values, into all variables of the
    graph. RuntimeError where TensorFlow executes eagerly, and keeps no list of variables."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "there are no global variables in eager execution: call hvd.broadcast_variables() with "
            "those of the model and of the optimizer"
        )
    variables = tf.compat.v1.global_variables()
    return tf.group(*_assign_of_root(variables, root_rank, global_process_set))


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

    def run(array: Array, *given: Array) -> Sequence[Array]:
        gives = asking.shares(len(array), given[0].tolist() if given else None, process_set.size())
        found: list[Array] = asking.begin(
            kind, word, [array], process_set=process_set, numbers=gives
        ).result()
        return found

    more = [] if splits is None else [tf.convert_to_tensor(splits)]

    def forward(given: Tensor) -> Any:
        found, received = _call(run, [given, *more], [given.dtype, tf.int32])
        found.set_shape([None, *given.shape[1:]])
        received.set_shape([None])

        def backward(gradient: Tensor, _: Any) -> Tensor:
            back, _ = alltoall(gradient, received, f"{word}.gradient", process_set)
            return back

        return (found, received), backward

    found, received = _differentiable(forward, _tensors([tensor]))
    return found if splits is None else (found, received)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Rows of the reductions, in one operation: the first ranks have one more where they cannot be
    shared evenly. Gradients go through averages and sums (:func:`asking.reducescatter_scale`)."""
    kind = negotiation.REDUCESCATTER
    word = asking.named(kind, name, process_set)

    def run(*arrays: Array) -> Sequence[Array]:
        found: list[Array] = asking.begin(
            kind,
            word,
            arrays,
            process_set=process_set,
            op=OPS[op],
            prescale=prescale_factor,
            postscale=postscale_factor,
        ).result()
        return found

    def scale() -> float:
        return asking.reducescatter_scale(op, prescale_factor, postscale_factor, process_set)

    def forward(*given: Tensor) -> Any:
        def backward(*gradients: Tensor) -> list[Tensor]:
            factor = _number(scale, tf.float64)
            scaled = [each * tf.cast(factor, each.dtype) for each in _tensors(gradients)]
            return grouped_allgather(scaled, f"{word}.gradient", process_set)

        results = _call(run, given, [each.dtype for each in given])
        for result, each in zip(results, given, strict=True):
            result.set_shape([None, *each.shape[1:]])
        return results, backward

    packed = [compression.compress(each) for each in _tensors(tensors)]
    results = _differentiable(forward, [each for each, _ in packed])
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, packed, strict=True)
    ]


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
    """As :func:`grouped_reducescatter`, of one tensor."""
    (found,) = grouped_reducescatter(
        [tensor],
        device_dense,
        compression,
        op,
        name,
        process_set,
        prescale_factor,
        postscale_factor,
    )
    return found


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
