# SPDX-License-Identifier: Apache-2.0
"""Gradients of all ranks: a tape and Keras optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorwire.horovod.asking import Adasum, Average
from tensorwire.horovod.process import ProcessSet, global_process_set
from tensorwire.horovod.tensorflow.compression import Compression
from tensorwire.horovod.tensorflow.operations import allreduce, grouped_allreduce

_Layer: Any = tf.keras.layers.Layer  # of Keras 3, or of tf_keras


def _reference(variable: Any) -> Any:
    """By which variables are the same one: Keras 3 has variables that hold TensorFlow's."""
    value = getattr(variable, "value", None)
    return (value if isinstance(value, tf.Variable) else variable).ref()


def _times(gradient: Any, factor: float) -> Any:
    if factor == 1.0:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


class _How:
    def __init__(
        self,
        name: str,
        compression: Any,
        op: int,
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        factor: float = 1.0,
        scale_local: bool = True,
    ) -> None:
        """``factor``: of what is reduced. ``scale_local``: gradients of local variables are divided
        by the number of ranks."""
        if predivide != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor needs op=Average")
        self._name = name
        self._compression = compression
        self._op = op
        self._scales = (1 / predivide, predivide)
        self._factor = factor
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._scale_local = scale_local
        self._local: set[Any] = set()

    def keep_local(self, variable: Any) -> None:
        self._local.add(_reference(variable))

    def reduced(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """All dense ones go together; None stays None, and those of local variables this rank's."""
        if not self._local:
            return self._reduced(gradients)
        local = [
            i
            for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
            if gradient is not None and _reference(variable) in self._local
        ]
        found = self._reduced([None if i in local else each for i, each in enumerate(gradients)])
        for i in local:
            share = self._factor
            if self._scale_local and self._process_set.included():
                share /= self._process_set.size()
            found[i] = _times(gradients[i], share)
        return found

    def _reduced(self, gradients: Sequence[Any]) -> list[Any]:
        found = [each if each is None else _times(each, self._factor) for each in gradients]
        if not self._process_set.included() or self._process_set.size() == 1:
            return found
        for i, each in enumerate(found):
            if isinstance(each, tf.IndexedSlices):
                if self._sparse_as_dense:
                    found[i] = tf.convert_to_tensor(each)
                else:
                    found[i] = allreduce(
                        each,
                        op=self._op,
                        name=f"{self._name}.{i}",
                        process_set=self._process_set,
                    )
        dense = [
            i
            for i, each in enumerate(found)
            if each is not None and not isinstance(each, tf.IndexedSlices)
        ]
        if dense:
            results = grouped_allreduce(
                [found[i] for i in dense],
                op=self._op,
                compression=self._compression,
                prescale_factor=self._scales[0],
                postscale_factor=self._scales[1],
                name=self._name,
                process_set=self._process_set,
            )
            for i, result in zip(dense, results, strict=True):
                found[i] = result
        return found


class _Tape:
    """A ``tf.GradientTape`` whose gradients are those of all ranks."""

    def __init__(self, tape: Any, how: _How) -> None:
        self._tape = tape
        self._how = how

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def __enter__(self) -> _Tape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._tape.__exit__(*error)

    def gradient(self, target: Any, sources: Any, *more: Any, **named: Any) -> Any:
        gradients = self._tape.gradient(target, sources, *more, **named)
        reduced = self._how.reduced(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(gradients, reduced)

    def register_local_source(self, source: Any) -> None:
        """This variable's gradient stays this rank's."""
        self._how.keep_local(source)


def DistributedGradientTape(  # Horovod's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The tape, with ``gradient()`` of all ranks. All gradients are reduced as one, whatever the
    groups are; by Adasum each by itself, and dense ones only."""
    return _Tape(
        gradtape,
        _How(
            "tape",
            compression,
            op,
            gradient_predivide_factor,
            sparse_as_dense,
            process_set,
            scale_local=scale_local_gradients,
        ),
    )


def PartialDistributedGradientTape(  # Horovod's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """As :func:`DistributedGradientTape`, but gradients of ``local_layers`` stay this rank's: of a
    Keras layer that has been built, or of several. With ``scale_local_gradients`` they are divided
    by the number of ranks, as is each rank's part of an average."""
    tape = DistributedGradientTape(
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in _weights(local_layers):
        tape.register_local_source(variable)
    return tape


def _weights(layers: Any) -> list[Any]:
    if layers is None:
        return []
    found = []
    for layer in [layers] if isinstance(layers, _Layer) else layers:
        if not isinstance(layer, _Layer):
            raise ValueError(f"local_layers takes layers of Keras, and not {layer!r}")
        if not layer.built:
            raise ValueError(f"{layer.name} of local_layers has no weights yet: build it first")
        found += layer.trainable_weights
    return found


def DistributedOptimizer(  # Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A Keras optimizer like the given one, that applies the gradients of all ranks.

    With ``backward_passes_per_step`` gradients are added up, or averaged with
    ``average_aggregated_gradients``, and go to others once for so many steps: Keras 3.
    """
    if op == Adasum:  # its vectors are steps, which Keras' optimizers do not give away
        raise NotImplementedError(
            "op=Adasum with an optimizer of Keras: reduce gradients by DistributedGradientTape"
        )
    passes = backward_passes_per_step
    summed = passes if passes > 1 and not average_aggregated_gradients else 1
    how = _How(
        name or "optimizer", compression, op, gradient_predivide_factor, sparse_as_dense,
        process_set, summed, scale_local_gradients,
    )  # fmt: skip
    kind = type(optimizer)
    config = optimizer.get_config()
    body = _at_once(kind, how) if passes == 1 else _accumulating(kind, how)
    if passes > 1:
        if "gradient_accumulation_steps" not in config:
            raise NotImplementedError("backward_passes_per_step needs the optimizers of Keras 3")
        config["gradient_accumulation_steps"] = passes
    distributed: Any = type(kind.__name__, (kind,), body)
    return distributed.from_config(config)


def PartialDistributedOptimizer(  # Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """As :func:`DistributedOptimizer`, but gradients of ``local_layers`` stay this rank's, as with
    :func:`PartialDistributedGradientTape`."""
    made = DistributedOptimizer(
        optimizer,
        name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in _weights(local_layers):
        made.register_local_var(variable)
    return made


def _at_once(kind: Any, how: _How) -> dict[str, Any]:
    """What a class of optimizers does instead: reduces what it is given."""

    def apply(self: Any, gradients: Any, trainable_variables: Any = None, **named: Any) -> Any:
        variables = trainable_variables or self._trainable_variables
        reduced = how.reduced(list(gradients), list(variables))
        return getattr(kind, "apply")(self, reduced, trainable_variables, **named)  # noqa: B009

    def apply_gradients(self: Any, pairs: Any, *more: Any, **named: Any) -> Any:
        gradients, variables = zip(*pairs, strict=True)
        reduced = zip(how.reduced(gradients, variables), variables, strict=True)
        return getattr(kind, "apply_gradients")(self, reduced, *more, **named)  # noqa: B009

    body = {"apply": apply} if hasattr(kind, "apply") else {"apply_gradients": apply_gradients}
    return {**body, "register_local_var": _register(how)}


def _accumulating(kind: Any, how: _How) -> dict[str, Any]:
    """The same for what Keras has averaged over several passes, which it clips next."""
    given: list[Any] = []

    def apply(self: Any, gradients: Any, variables: Any) -> Any:
        given[:] = variables
        return getattr(kind, "_backend_apply_gradients")(self, gradients, variables)  # noqa: B009

    def clip(self: Any, gradients: Any) -> Any:
        reduced = how.reduced(list(gradients), given)
        return getattr(kind, "_clip_gradients")(self, reduced)  # noqa: B009

    return {
        "_backend_apply_gradients": apply,
        "_clip_gradients": clip,
        "register_local_var": _register(how),
    }


def _register(how: _How) -> Any:
    def register_local_var(self: Any, var: Any) -> None:
        """This variable's gradient stays this rank's."""
        how.keep_local(var)

    return register_local_var
