# SPDX-License-Identifier: Apache-2.0
"""What a response asks of a group, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorwire.collective import Group
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


def _reduce(group: Group, array: Array, out: Array, request: Request) -> None:
    """Any size; ``out`` may be ``array``."""
    whole = array.dtype.kind in "iu"
    average = request.op == "average"
    if request.prescale != 1.0 or (request.op == "adasum" and out is not array):
        out[...] = array
        _scale(out, request.prescale)
        array = out
    if array.size == 0:
        return
    if request.op == "adasum":
        _adasum(group, out)
    else:
        group.all_reduce(array, "sum" if average and whole else request.op, out=out)  # type: ignore[call-overload]
    if average and whole:
        np.true_divide(out, group.size, out=out, casting="unsafe")
    _scale(out, request.postscale)


def _adasum(group: Group, array: Array) -> None:
    """In place: neighbours, then pairs of neighbours, each without what both have in common."""
    parts = list(group.all_gather(array).reshape(group.size, -1).astype(np.float64))
    while len(parts) > 1:
        parts = [_pair(left, right) for left, right in zip(parts[::2], parts[1::2], strict=True)]
    array[...] = parts[0].reshape(array.shape)


def _pair(left: Array, right: Array) -> Array:
    common = float(left @ right)
    of_left, of_right = float(left @ left), float(right @ right)
    keep_left = 1 - common / (2 * of_left) if of_left else 1.0
    keep_right = 1 - common / (2 * of_right) if of_right else 1.0
    result: Array = keep_left * left + keep_right * right
    return result


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
    for each in (each for into in outs for each in into):
        each[...] = buffer[at : at + each.size].reshape(each.shape)
        at += each.size
    return outs


def allgather(group: Group, array: Array, rows: Sequence[int]) -> Array:
    """``rows``: of each rank."""
    most = max(rows)
    if min(rows) == most:
        if array.size == 0:
            return np.empty((sum(rows), *array.shape[1:]), array.dtype)
        return group.all_gather(array).reshape(-1, *array.shape[1:])
    padded = np.zeros((most, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    if padded.size == 0:
        return np.empty((sum(rows), *array.shape[1:]), array.dtype)
    gathered = group.all_gather(padded)
    return np.concatenate([part[:count] for part, count in zip(gathered, rows, strict=True)])


def shares(rows: int, ranks: int) -> list[int]:
    """The first ones have one more."""
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


def reducescatter(group: Group, array: Array, request: Request) -> Array:
    counts = shares(len(array), group.size)
    whole = array.dtype.kind in "iu"
    even = len(set(counts)) == 1 and array.size > 0 and request.op != "adasum"
    if even and request.prescale == 1.0 and not (whole and request.op == "average"):
        out = group.reduce_scatter(array, request.op)  # type: ignore[arg-type]
        _scale(out, request.postscale)
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
