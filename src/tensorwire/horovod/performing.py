# SPDX-License-Identifier: Apache-2.0
"""What a response asks of a group, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorwire.collective import Group, Op
from tensorwire.horovod import negotiation
from tensorwire.horovod.negotiation import Request, Response

Array = npt.NDArray[Any]
Tell = Callable[[str], None]


@dataclass
class Tensors:
    """Of one request at this rank. ``outputs`` may be the ``inputs``; None: they are made."""

    inputs: Sequence[Array]
    outputs: Sequence[Array] | None = None


class Fusion:
    """Small tensors side by side in one buffer, which is kept."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def room(self, count: int, kind: np.dtype[Any]) -> Array:
        wanted = count * kind.itemsize
        if self._buffer.size < wanted:
            self._buffer = np.empty(wanted, np.uint8)
        return self._buffer[:wanted].view(kind)


def dtype_of(name: str) -> np.dtype[Any]:
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes

        name = getattr(ml_dtypes, name)
    found: np.dtype[Any] = np.dtype(name)
    return found


def _scale(array: Array, factor: float) -> None:
    if factor != 1.0:
        np.multiply(array, factor, out=array, casting="unsafe")


def _in_one_step(request: Request, array: Array, ranks: int) -> tuple[Op, float]:
    """What reduces, and by what its result is then multiplied. Of whole numbers an average with a
    factor is a sum with another one, as Horovod has it: two steps would cut fractions off twice."""
    if request.op == "average" and request.postscale != 1.0 and array.dtype.kind in "iu":
        return "sum", request.postscale / ranks
    op: Op = request.op  # type: ignore[assignment]
    return op, request.postscale


def _reduce(group: Group, array: Array, out: Array, request: Request) -> None:
    """Any size; ``out`` may be ``array``."""
    whole = array.dtype.kind in "iu"
    factor = 1.0
    if request.op in ("sum", "average") and not whole and array.dtype != bool:
        factor = request.prescale
    elif request.prescale != 1.0:
        out[...] = array
        _scale(out, request.prescale)
        array = out
    if array.size == 0:
        return
    op, scale = _in_one_step(request, array, group.size)
    group.all_reduce(array, op, factor=factor, out=out)
    _scale(out, scale)


def allreduce(
    group: Group, fusion: Fusion, batch: Sequence[tuple[Response, Tensors | None]], tell: Tell
) -> list[list[Array]]:
    """The results of each. None instead of tensors: this rank has joined, and gives zeros."""
    request = batch[0][0].request
    outs: list[list[Array]] = []
    for _, tensors in batch:
        if tensors is None:
            outs.append([])
        elif tensors.outputs is None:
            outs.append([np.empty_like(each) for each in tensors.inputs])
        else:
            outs.append(list(tensors.outputs))
    shapes = [each for response, _ in batch for each in response.request.tensors]
    if not shapes:
        return outs
    mixed = len({kind for kind, _ in shapes}) > 1
    if mixed or len(shapes) == 1 or request.op == "adasum":
        for (response, tensors), into in zip(batch, outs, strict=True):
            for index, (kind, shape) in enumerate(response.request.tensors):
                if tensors is None:
                    zeros = np.zeros(shape, dtype_of(kind))
                    _reduce(group, zeros, zeros, request)
                else:
                    _reduce(group, tensors.inputs[index], into[index], request)
        return outs
    count = sum(int(np.prod(shape, dtype=np.int64)) for _, shape in shapes)
    buffer = fusion.room(count, dtype_of(shapes[0][0]))
    tell("MEMCPY_IN_FUSION_BUFFER")
    at = 0
    for response, tensors in batch:
        for index, (_, shape) in enumerate(response.request.tensors):
            size = int(np.prod(shape, dtype=np.int64))
            buffer[at : at + size] = 0 if tensors is None else tensors.inputs[index].reshape(-1)
            at += size
    tell(f"{request.op.upper()}_ALLREDUCE")
    _reduce(group, buffer, buffer, request)
    tell("MEMCPY_OUT_FUSION_BUFFER")
    at = 0
    for (response, tensors), into in zip(batch, outs, strict=True):
        for index, (_, shape) in enumerate(response.request.tensors):
            size = int(np.prod(shape, dtype=np.int64))
            if tensors is not None:
                into[index][...] = buffer[at : at + size].reshape(shape)
            at += size
    return outs


def allgather(group: Group, array: Array, rows: Sequence[int]) -> Array:
    """``rows``: of each rank."""
    out = np.empty((sum(rows), *array.shape[1:]), array.dtype)
    if out.size == 0:
        return out
    if min(rows) == max(rows):  # that may be one step
        group.all_gather(array, out=out.reshape(group.size, *array.shape))
        return out
    return group.all_gather(array, rows=rows, out=out)


def shares(rows: int, ranks: int) -> list[int]:
    """The first ones have one more."""
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


def reducescatter(group: Group, array: Array, request: Request) -> Array:
    counts = shares(len(array), group.size)
    by_shares = array.size > 0 and request.op != "adasum"  # that is of all rows
    if by_shares and request.prescale == 1.0:
        rows = None if min(counts) == max(counts) else counts
        op, scale = _in_one_step(request, array, group.size)
        out: Array = group.reduce_scatter(array, op, rows=rows)
        _scale(out, scale)
        return out
    reduced = np.empty_like(array)
    _reduce(group, array, reduced, request)
    start = sum(counts[: group.rank])
    return reduced[start : start + counts[group.rank]].copy()


def perform(
    group: Group, members: Sequence[int], response: Response, tensors: Tensors
) -> list[Array]:
    """One that is not an allreduce, and moves tensors."""
    requests = [response.requests[rank] for rank in members]
    request = requests[group.rank]
    if response.kind == negotiation.ALLGATHER:
        return [
            allgather(group, array, [each.tensors[index][1][0] for each in requests])
            for index, array in enumerate(tensors.inputs)
        ]
    if response.kind == negotiation.REDUCESCATTER:
        return [reducescatter(group, array, request) for array in tensors.inputs]
    if response.kind == negotiation.ALLTOALL:
        takes = [each.numbers[group.rank] for each in requests]
        (array,) = tensors.inputs
        got = group.all_to_all(array, request.numbers, takes)
        return [got, np.array(takes, np.int32)]
    assert response.kind == negotiation.BROADCAST
    (array,) = tensors.inputs
    out = array.copy() if tensors.outputs is None else tensors.outputs[0]
    if request.root == members[group.rank] and out is not array:
        out[...] = array
    if out.size:
        group.broadcast(out, members.index(request.root))
    return [out]
