# SPDX-License-Identifier: Apache-2.0
"""What ranks do with groups that check, as with TORCH_DISTRIBUTED_DEBUG=DETAIL."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from tests.torch.programs import message_of

import torch


def checked_group(size: int) -> Any:
    """Of all ranks, as with TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level

    level = get_debug_level()
    set_debug_level(DebugLevel.DETAIL)
    try:
        return dist.new_group(list(range(size)))
    finally:
        set_debug_level(level)


def checked(rank: int, size: int) -> tuple[str, list[str], list[float]]:
    """PyTorch checks what ranks ask for. Also through what operations go, and what a sum comes to
    after two on which the ranks did not agree."""
    group = checked_group(size)
    checker = group._get_backend(torch.device("cpu"))
    ones = torch.ones(2)
    said = [
        message_of(lambda: dist.all_reduce(torch.ones(2 + rank), group=group)),
        message_of(
            lambda: dist.broadcast(ones, 0, group) if rank else dist.all_reduce(ones, group=group)
        ),
    ]
    mine = torch.full((2,), rank + 1.0)
    work = dist.all_reduce(mine, group=group, async_op=True)
    assert work is not None
    work.wait()
    return f"{type(checker).__name__} of {checker.wrapped_pg.name()}", said, mine.tolist()


def with_nan(rank: int, size: int) -> tuple[list[str], list[float]]:
    """Reductions to which rank 1 gives NaN, by a group that looks for it; and what a sum comes to
    after them."""
    group = checked_group(size)
    good = torch.ones(4)
    bad = good.clone()
    bad[2] = float("nan") if rank == 1 else 1
    share = torch.empty(2)
    small, halves, numbers = bad.to(torch.float8_e5m2), bad.half(), bad.to(torch.complex64)

    def begun() -> None:
        work = dist.all_reduce(bad, group=group, async_op=True)
        assert work is not None
        work.wait()

    said = [
        message_of(lambda: dist.all_reduce(bad, group=group)),
        message_of(begun),
        message_of(lambda: dist.reduce(halves, 0, group=group)),
        message_of(lambda: dist.all_reduce(small, dist.ReduceOp.MAX, group=group)),
        message_of(lambda: dist.all_reduce(numbers, group=group)),
        message_of(lambda: dist.reduce_scatter_tensor(share, bad, group=group)),
        message_of(lambda: dist.reduce_scatter(share, [good[:2], bad[2:]], group=group)),
        message_of(lambda: dist.all_reduce_coalesced([good, bad], group=group)),
    ]
    assert bad[3] == 1  # untouched
    dist.broadcast(bad, 1, group)
    assert bad[2].isnan()  # moved as it is
    dist.all_reduce(good, group=group)
    dist.all_reduce(torch.ones(2, dtype=torch.int32), group=group)
    return said, good.tolist()
