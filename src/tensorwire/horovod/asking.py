# SPDX-License-Identifier: Apache-2.0
"""What the modules of all frameworks ask for, on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from tensorwire.horovod import negotiation, process
from tensorwire.horovod.negotiation import Request
from tensorwire.horovod.performing import Array
from tensorwire.horovod.process import ProcessSet, global_process_set

# Horovod's numbers.
Average: Final = 0
Sum: Final = 1
Adasum: Final = 2
Min: Final = 3
Max: Final = 4
Product: Final = 5
OPS: Final = ("average", "sum", "adasum", "min", "max", "product")

_ADASUM_TYPES: Final = ("float64", "float32", "float16", "bfloat16")


def operation(average: bool | None, op: int | None) -> str:
    if average is not None:
        if op is not None:
            raise ValueError("give op or average, not both")
        op = Average if average else Sum
    return OPS[Average if op is None else op]


def named(kind: str, name: str | None, process_set: ProcessSet = global_process_set) -> str:
    """Unnamed ones are matched by their order among those of their process set."""
    if name:
        return f"{kind}.{name}"
    return f"{kind}.noname.{process.runtime().count(kind, process.identifier(process_set))}"


def begin(
    kind: str,
    name: str,
    arrays: Sequence[Array] = (),
    outputs: Sequence[Array] | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    op: str = "",
    root: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    numbers: Sequence[int] = (),
) -> Future[Any]:
    """The future has the resulting arrays."""
    if not process_set.included():
        raise ValueError(f"rank {process.rank()} is not in {process_set}")
    if op == "adasum":
        for array in arrays:
            if array.dtype.name not in _ADASUM_TYPES:
                raise ValueError(f"Adasum is of {', '.join(_ADASUM_TYPES)}, not of {array.dtype}")
    request = Request(
        kind,
        name,
        process.identifier(process_set),
        tuple((array.dtype.name, array.shape) for array in arrays),
        op,
        process.whole("a root", root),
        float(prescale),
        float(postscale),
        tuple(process.whole("a number of rows", each) for each in numbers),
    )
    return process.runtime().submit(request, arrays, outputs)


def shares(rows: int, splits: Sequence[int] | None, ranks: int) -> list[int]:
    """Of an alltoall: how many rows go to each rank."""
    if splits is None:
        if rows % ranks:
            raise ValueError(f"{rows} rows cannot be shared by {ranks} ranks: give splits")
        return [rows // ranks] * ranks
    gives = [int(each) for each in splits]
    if len(gives) != ranks or min(gives) < 0 or sum(gives) != rows:
        raise ValueError(f"splits needs {ranks} numbers of rows that add up to {rows}")
    return gives


def reducescatter_scale(
    op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> float:
    """By what Horovod multiplies a gradient that goes back through a reducescatter, before it
    gathers those of all ranks."""
    if op not in (Average, Sum):
        raise ValueError(f"no gradient goes through a reducescatter of op {OPS[op]}")
    return prescale * postscale * (process_set.size() if op == Sum else 1)


def join(device: int = -1) -> int:
    """This rank has no more data: until all have joined it gives zeros to the allreduces of the
    others. Returns who joined last."""
    request = Request(negotiation.JOIN, negotiation.JOIN)
    last: int = process.runtime().submit(request).result()
    return last


def barrier(process_set: ProcessSet = global_process_set) -> None:
    kind = negotiation.BARRIER
    begin(kind, named(kind, None, process_set), process_set=process_set).result()


# What Horovod is built with, as programs ask for it.


def none_built() -> bool:
    return False


def nccl_built() -> int:
    return 0
