# SPDX-License-Identifier: Apache-2.0
"""An optimizer whose gradients are those of all ranks."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tensorwire.horovod.asking import Adasum, Average
from tensorwire.horovod.process import ProcessSet, global_process_set
from tensorwire.horovod.torch import in_place
from tensorwire.horovod.torch.adasum import AdasumDeltas, Deltas
from tensorwire.horovod.torch.compression import Compression
from tensorwire.horovod.torch.operations import (
    Handle,
    finished,
    grouped_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)

Parameter = Any
Bucket = tuple[Parameter, ...]


class _Gradients:
    """Reduces them in the background, a bucket as soon as backward() has made all of it."""

    def __init__(
        self,
        names: dict[Parameter, str],
        buckets: Sequence[Bucket],
        passes: int,
        compression: Any,
        op: int,
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._names = names
        self._buckets = buckets
        self._bucket_of = {p: bucket for bucket in buckets for p in bucket}
        self.passes = passes
        self._compression = compression
        self._op = op
        self._scales = (1 / predivide, predivide) if op == Average else (1.0, 1.0)
        self._sparse_as_dense = sparse_as_dense
        self._sparse_axes: dict[Parameter, int] = {}  # how many, of those that have had some
        self._process_set = process_set
        self._made: Counter[Parameter] = Counter()
        self._begun: dict[Bucket, list[Callable[[], None]]] = {}
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._hook)

    def _shared(self) -> bool:
        """Whether there are others to reduce with: in an elastic job that changes."""
        return self._process_set.included() and self._process_set.size() > 1

    @property
    def outstanding(self) -> bool:
        return bool(self._begun)

    def reset(self) -> None:
        self._made.clear()
        self._begun.clear()

    def _hook(self, parameter: Parameter) -> None:
        if not self._shared():
            return
        bucket = self._bucket_of[parameter]
        if bucket in self._begun:
            raise AssertionError(
                "gradients were computed more than backward_passes_per_step times before step(): "
                "raise backward_passes_per_step to add them up"
            )
        self._made[parameter] += 1
        if all(self._made[each] >= self.passes for each in bucket):
            self._begin(bucket)

    def _begin(self, bucket: Bucket) -> None:
        for each in bucket:
            if each.grad is None:  # not on this rank's way; it may be on another one's
                zeros = torch.zeros_like(each)
                axes = self._sparse_axes.get(each)
                each.grad = zeros if axes is None else zeros.to_sparse(axes)
            elif each.grad.is_sparse:
                self._sparse_axes[each] = each.grad.sparse_dim()
        sparse = [each for each in bucket if each.grad.is_sparse and not self._sparse_as_dense]
        dense = [each for each in bucket if each not in set(sparse)]
        self._begun[bucket] = [self._begin_sparse(each) for each in sparse]
        if dense:
            self._begun[bucket].append(self._begin_dense(dense))

    def _begin_sparse(self, parameter: Parameter) -> Callable[[], None]:
        result = sparse_allreduce_async(
            parameter.grad, self._names[parameter], self._op, self._process_set
        )

        def finish() -> None:
            parameter.grad = result().coalesce()

        return finish

    def _begin_dense(self, parameters: list[Parameter]) -> Callable[[], None]:
        sparse = {each for each in parameters if each.grad.is_sparse}
        gradients = [each.grad.to_dense() if each in sparse else each.grad for each in parameters]
        packed = [self._compression.compress(each) for each in gradients]
        handle: Handle = grouped_allreduce_async_(
            [tensor for tensor, _ in packed],
            name=self._names[parameters[0]],
            op=self._op,
            prescale_factor=self._scales[0],
            postscale_factor=self._scales[1],
            process_set=self._process_set,
        )

        def finish() -> None:
            results = synchronize(handle)
            for each, result, (_, context) in zip(parameters, results, packed, strict=True):
                gradient = self._compression.decompress(result, context)
                if each in sparse:  # its optimizer may take no others
                    gradient = gradient.to_sparse(self._sparse_axes[each])
                if gradient is not each.grad:
                    each.grad = gradient

        return finish

    def synchronize(self) -> None:
        if not self._shared():
            return
        for bucket in self._buckets:
            if bucket not in self._begun:
                self._begin(bucket)
        begun = list(self._begun.values())
        self.reset()
        finished(finish for each in begun for finish in each)


class _Distributed:
    """Goes before an optimizer's own class."""

    _gradients: _Gradients
    _synchronized: bool
    _should_synchronize: bool

    def synchronize(self) -> None:
        """Waits until all gradients are those of all ranks."""
        self._gradients.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """For a ``step()`` after ``synchronize()``, between which gradients were clipped."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "step() after synchronize() reduces the gradients once more: "
                    "use skip_synchronize()",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        if self._gradients.outstanding:
            raise AssertionError(
                "zero_grad() between backward() and step(), or synchronize(), is a race: "
                "gradients are being reduced"
            )
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._gradients.reset()
        self._synchronized = False
        self._should_synchronize = True
        with in_place.kept(self):
            super().load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._gradients.passes = passes


def DistributedOptimizer(  # Horovod's name
    optimizer: Any,
    named_parameters: Iterable[tuple[str, Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The optimizer, which shares its state, with ``step()`` on the gradients of all ranks.

    ``groups``: how many buckets, or their parameters; a bucket is reduced as one. With
    ``op=Adasum`` each rank steps by its own gradients, and what that has changed is reduced, once
    ``step()`` is called: ``groups``, ``sparse_as_dense`` and ``backward_passes_per_step`` have no
    part in that.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor needs op=Average")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    names = _names(parameters, named_parameters)
    base = AdasumDeltas if op == Adasum else _Distributed
    kind = type(type(optimizer).__name__, (base, type(optimizer)), {})
    made: Any = object.__new__(kind)
    made.__dict__.update(optimizer.__dict__)
    made.__dict__.pop("step", None)  # of a scheduler: it would step past this class
    if op == Adasum:
        made._deltas = Deltas(
            [p for p in parameters if p.requires_grad], names, compression, process_set
        )
        return made
    made._synchronized = False
    made._should_synchronize = True
    made._gradients = _Gradients(
        names,
        _buckets([p for p in parameters if p.requires_grad], groups or num_groups or None),
        backward_passes_per_step,
        compression,
        op,
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
    )
    return made


def _names(
    parameters: Sequence[Parameter], named: Iterable[tuple[str, Parameter]] | None
) -> dict[Parameter, str]:
    if named is None:
        # Apart from the names that asking.named() gives to operations without one.
        return {parameter: f"parameter.noname.{i}" for i, parameter in enumerate(parameters)}
    pairs = list(named)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError("named_parameters takes pairs, as model.named_parameters() has them")
    twice = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if twice:
        raise ValueError(f"named_parameters has names twice: {', '.join(twice)}")
    names = {parameter: name for name, parameter in pairs}
    unnamed = sum(parameter not in names for parameter in parameters)
    if unnamed:
        raise ValueError(f"named_parameters lacks {unnamed} of the optimizer's parameters")
    return names


def _buckets(
    parameters: Sequence[Parameter], groups: int | list[list[Parameter]] | None
) -> list[Bucket]:
    if groups is None:
        return [(parameter,) for parameter in parameters]
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError("groups is a number of buckets, or lists of parameters")
        size = -(-len(parameters) // groups)
        return [tuple(parameters[at : at + size]) for at in range(0, len(parameters), size)]
    trained = set(parameters)
    found = [tuple(p for p in bucket if p in trained) for bucket in groups]
    counts = Counter(p for bucket in found for p in bucket)
    if any(times > 1 for times in counts.values()):
        raise ValueError("a parameter is in two groups")
    rest: list[Bucket] = [(p,) for p in parameters if p not in counts]
    return [bucket for bucket in found if bucket] + rest
