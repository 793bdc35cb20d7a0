# SPDX-License-Identifier: Apache-2.0
"""Operations with the arguments that Horovod's module for Keras gives them: the name first."""

from __future__ import annotations

from typing import Any

from tensorwire.horovod.asking import Average
from tensorwire.horovod.tensorflow import operations
from tensorwire.horovod.tensorflow.compression import Compression


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """The values of all ranks, reduced."""
    return operations.allreduce(
        value,
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """The values of all ranks, one behind the other; their first axes may differ."""
    return operations.allgather(value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's value."""
    return operations.broadcast(value, root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Rows of the reduction: the first ranks have one more where they cannot be shared evenly."""
    return operations.reducescatter(value, op=op, name=name)
