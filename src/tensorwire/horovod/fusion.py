# SPDX-License-Identifier: Apache-2.0
"""Which responses are done by one operation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tensorwire.horovod.negotiation import ALLREDUCE, Request, Response


def item_size(kind: str) -> int:
    return 2 if kind == "bfloat16" else 1 if kind.startswith("float8") else np.dtype(kind).itemsize


def size_of(request: Request) -> int:
    """Bytes of its tensors."""
    return sum(prod(shape) * item_size(kind) for kind, shape in request.tensors)


def batches(responses: Sequence[Response], threshold: int) -> list[list[Response]]:
    """In the order of their first ones. Allreduces of one type and reduction go together, up to
    ``threshold`` bytes; what is larger goes alone."""
    found: list[list[Response]] = []
    open_ones: dict[object, tuple[list[Response], int]] = {}
    for response in responses:
        if response.error or response.kind != ALLREDUCE:
            found.append([response])
            continue
        request = response.request
        kinds = {kind for kind, _ in request.tensors}
        alike = (
            request.process_set,
            tuple(kinds),
            request.op,
            request.prescale,
            request.postscale,
            len(response.requests),
        )
        bytes_here = size_of(request)
        batch, filled = open_ones.get(alike, ([], 0))
        if len(kinds) != 1 or not batch or filled + bytes_here > threshold:
            batch, filled = [], 0
            found.append(batch)
        batch.append(response)
        if len(kinds) == 1:
            open_ones[alike] = (batch, filled + bytes_here)
    return found
