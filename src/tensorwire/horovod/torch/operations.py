# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations on tensors. Those of other devices than the CPU go by its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial, update_wrapper
from typing import Any, Final, ParamSpec

import numpy as np

import torch
from tensorwire.horovod import asking, negotiation, process
from tensorwire.horovod.asking import OPS, Average
from tensorwire.horovod.performing import Array, dtype_of
from tensorwire.horovod.process import ProcessSet, global_process_set
from tensorwire.horovod.torch.compression import Compression

P = ParamSpec("P")
Tensor = Any
_Function: Any = torch.autograd.Function  # typed or not, as PyTorch is installed or not

_TYPES: Final = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.bool: "bool",
}


class Handle:
    """An operation that has been begun: for ``poll`` and ``synchronize``."""

    def __init__(self, future: Future[Any], finish: Callable[[Any], Any]) -> None:
        self._future = future
        self._finish = finish

    def done(self) -> bool:
        return self._future.done()

    def result(self) -> Any:
        return self._finish(self._future.result())


def _array(tensor: Tensor) -> Array:
    """Its memory where that is the CPU's and dense, or a copy."""
    if tensor.dtype not in _TYPES or tensor.is_sparse:
        raise ValueError(f"tensors of {tensor.dtype}, {tensor.layout}, are not supported")
    dense = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        bits: Array = dense.view(torch.int16).numpy()
        return bits.view(dtype_of("bfloat16"))
    array: Array = dense.numpy()
    return array


def _tensor(array: Array, like: Tensor) -> Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(like.device)
    return torch.from_numpy(array).to(like.device)


def _tensors(arrays: Sequence[Array], like: Sequence[Tensor]) -> list[Tensor]:
    return [_tensor(array, each) for array, each in zip(arrays, like, strict=True)]


def _begin(
    kind: str,
    tensors: Sequence[Tensor],
    name: str | None,
    process_set: ProcessSet,
    *,
    in_place: bool = False,
    **how: Any,
) -> Handle:
    """``how``: of ``asking.begin``."""
    arrays = [_array(each) for each in tensors]
    outputs = arrays if in_place else None
    word = asking.named(kind, name, process_set)
    future = asking.begin(kind, word, arrays, outputs, process_set=process_set, **how)
    return Handle(future, lambda results: (_written if in_place else _tensors)(results, tensors))


def _written(results: Sequence[Array], tensors: Sequence[Tensor]) -> list[Tensor]:
    """What was reduced in a copy goes to where the tensor is."""
    for result, tensor in zip(results, tensors, strict=True):
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            with torch.no_grad():
                tensor.copy_(_tensor(result, tensor))
    return list(tensors)


def _first(handle: Handle) -> Handle:
    """Of a list of one."""
    return Handle(handle._future, lambda results: handle._finish(results)[0])


def poll(handle: Handle) -> bool:
    """Whether ``synchronize`` would return at once."""
    return handle.done()


def synchronize(handle: Handle) -> Any:
    """Waits, and returns the result. HorovodInternalError when the operation failed."""
    return handle.result()


def finished(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """What they return. Each waits for an operation, and all are called, whatever one of them
    raises: arrays of an operation that is under way are not the caller's yet. The first exception
    is raised once all have ended."""
    results, errors = [], []
    for call in calls:
        try:
            results.append(call())
        except Exception as error:  # noqa: PERF203
            errors.append(error)
    if errors:
        raise errors[0]
    return results


def _blocking(begin: Callable[P, Handle]) -> Callable[P, Any]:
    """The same operation, which waits for its result and returns that."""

    def operation(*arguments: P.args, **named: P.kwargs) -> Any:
        return synchronize(begin(*arguments, **named))

    update_wrapper(operation, begin)
    operation.__name__ = operation.__qualname__ = begin.__name__.replace("_async", "")
    return operation


def _compressed(
    function: Any, how: tuple[Any, ...], tensors: Sequence[Tensor], compression: Any
) -> list[Tensor]:
    """By a function of autograd's."""
    packed = [compression.compress(each) for each in tensors]
    results = function.apply(how, *(each for each, _ in packed))
    return [
        compression.decompress(each, context)
        for each, (_, context) in zip(results, packed, strict=True)
    ]


# ---- allreduce ----


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    return _first(
        grouped_allreduce_async(
            [tensor], average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    return _first(
        grouped_allreduce_async_(
            [tensor], average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


allreduce_ = _blocking(allreduce_async_)


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    return _begin(
        negotiation.ALLREDUCE,
        tensors,
        name,
        process_set,
        op=asking.operation(average, op),
        prescale=prescale_factor,
        postscale=postscale_factor,
    )


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    return _begin(
        negotiation.ALLREDUCE,
        tensors,
        name,
        process_set,
        in_place=True,
        op=asking.operation(average, op),
        prescale=prescale_factor,
        postscale=postscale_factor,
    )


grouped_allreduce_ = _blocking(grouped_allreduce_async_)


class _Allreduce(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, how: tuple[Any, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        context.how = how
        return tuple(synchronize(grouped_allreduce_async(tensors, *how)))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        average, _, *more = context.how
        return None, *synchronize(grouped_allreduce_async(gradients, average, None, *more))


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    how = (average, name, op, prescale_factor, postscale_factor, process_set)
    return _compressed(_Allreduce, how, tensors, compression)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The tensors of all ranks, reduced; averaged unless ``op`` says otherwise."""
    (found,) = grouped_allreduce(
        [tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set
    )
    return found


def sparse_allreduce_async(
    tensor: Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Call what it returns for the result."""
    tensor = tensor.coalesce()
    indices = allgather_async(tensor.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(tensor.values(), f"{name}.values", process_set)
    ranks = process_set.size()

    def finish() -> Tensor:
        places, found = finished(partial(synchronize, each) for each in (indices, values))
        if op == Average:
            found = found / ranks
        return torch.sparse_coo_tensor(places.t(), found, tensor.size())

    return finish


# ---- allgather ----


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    arrays = [np.atleast_1d(_array(each)) for each in tensors]
    kind = negotiation.ALLGATHER
    future = asking.begin(
        kind, asking.named(kind, name, process_set), arrays, process_set=process_set
    )
    return Handle(future, lambda results: _tensors(results, tensors))


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    return _first(grouped_allgather_async([tensor], name, process_set))


class _Allgather(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        context: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        context.process_set = process_set
        context.rows = [1 if each.dim() == 0 else each.shape[0] for each in tensors]
        context.shapes = [each.shape for each in tensors]
        return tuple(synchronize(grouped_allgather_async(tensors, name, process_set)))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        group = context.process_set
        counts = allgather_async(torch.tensor([context.rows]), None, group)
        reduced = synchronize(
            grouped_allreduce_async([each.contiguous() for each in gradients], op=Average,
                                    process_set=group)
        )  # fmt: skip
        before = synchronize(counts)[: group.rank()].sum(0).tolist()
        return (
            None,
            None,
            *(
                each[start : start + rows].reshape(shape)
                for each, start, rows, shape in zip(
                    reduced, before, context.rows, context.shapes, strict=True
                )
            ),
        )


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    return list(_Allgather.apply(name, process_set, *tensors))


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The tensors of all ranks, one behind the other; their first axes may differ."""
    return grouped_allgather([tensor], name, process_set)[0]


# ---- broadcast ----


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    kind = negotiation.BROADCAST
    return _first(_begin(kind, [tensor], name, process_set, root=root_rank))


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    kind = negotiation.BROADCAST
    return _first(_begin(kind, [tensor], name, process_set, in_place=True, root=root_rank))


broadcast_ = _blocking(broadcast_async_)


class _Broadcast(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        context: Any, tensor: Tensor, root: int, name: str | None, process_set: ProcessSet
    ) -> Tensor:
        context.root, context.process_set = root, process_set
        return synchronize(broadcast_async(tensor, root, name, process_set))

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        reduced = synchronize(
            allreduce_async(gradient, op=Average, process_set=context.process_set)
        )
        if process.rank() != context.root:
            reduced = torch.zeros_like(reduced)
        return reduced, None, None, None


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The root's tensor. ``root_rank`` is a rank among all, also in a process set."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


# ---- alltoall ----


def alltoall_async(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """The result is the rows received and how many of each rank, also without ``splits``."""
    array = _array(tensor)
    rows = array.shape[0] if array.ndim else 0
    kind = negotiation.ALLTOALL
    future = asking.begin(
        kind,
        asking.named(kind, name, process_set),
        [array],
        process_set=process_set,
        numbers=asking.shares(rows, splits, process_set.size()),
    )

    def finish(results: list[Array]) -> Any:
        return _tensor(results[0], tensor), torch.from_numpy(results[1])

    return Handle(future, finish)


class _Alltoall(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        context: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor]:
        given = asking.shares(tensor.shape[0], splits, process_set.size())
        found, received = synchronize(alltoall_async(tensor, given, name, process_set))
        context.received, context.process_set = received, process_set
        context.mark_non_differentiable(received)
        return found, received

    @staticmethod
    def backward(context: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        handle = alltoall_async(gradient, context.received, None, context.process_set)
        return synchronize(handle)[0], None, None, None


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Rows for each rank, for rows from each. With ``splits`` a pair: the second one says how many
    have come from each."""
    found, received = _Alltoall.apply(tensor, splits, name, process_set)
    return found if splits is None else (found, received)


# ---- reducescatter ----


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    if any(each.dim() == 0 for each in tensors):
        raise ValueError("a tensor without axes cannot be shared")
    return _begin(
        negotiation.REDUCESCATTER,
        tensors,
        name,
        process_set,
        op=OPS[op],
        prescale=prescale_factor,
        postscale=postscale_factor,
    )


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    return _first(
        grouped_reducescatter_async(
            [tensor], name, op, process_set, prescale_factor, postscale_factor
        )
    )


class _Reducescatter(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, how: tuple[Any, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        context.how = how
        return tuple(synchronize(grouped_reducescatter_async(tensors, *how)))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        _, op, process_set, prescale, postscale = context.how
        scale = asking.reducescatter_scale(op, prescale, postscale, process_set)
        gathered = synchronize(
            grouped_allgather_async([each.contiguous() for each in gradients], None, process_set)
        )
        return None, *(each * scale for each in gathered)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    how = (name, op, process_set, prescale_factor, postscale_factor)
    return _compressed(_Reducescatter, how, tensors, compression)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Rows of the reduction: the first ranks have one more where they cannot be shared evenly."""
    (found,) = grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )
    return found
