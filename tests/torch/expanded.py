# SPDX-License-Identifier: Apache-2.0
"""What ranks do with tensors whose elements lie in one place of memory."""

from __future__ import annotations

import torch.distributed as dist

import torch


def broadcast(rank: int, size: int) -> list[list[float]]:
    """What all have of the root's, which is only read."""
    tensor = torch.full((1,), 7.0).expand(3) if rank == 1 else torch.zeros(3)
    work = dist.broadcast(tensor, 1, async_op=True)
    assert work is not None
    work.wait()
    found = [tensor.tolist()]
    dist.broadcast(tensor, 1)
    return [*found, tensor.tolist()]
