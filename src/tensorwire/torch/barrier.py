# SPDX-License-Identifier: Apache-2.0
"""``torch.distributed.monitored_barrier`` for groups of every back end that has one: PyTorch's own
refuses all but gloo by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import timedelta


def monitored_barrier(
    group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Returns once all ranks of the group have called it. ``timeout`` is the group's where it is
    None. A rank that is not in the group returns at once.

    ``torch.distributed.DistBackendError`` names, by its rank in the group, the first rank that has
    not come in time, or with ``wait_all_ranks`` all of them, on each rank that has come. Where rank
    0 is missing it alone is named, because it alone knows of the others. The group goes on.
    """
    import torch.distributed as dist

    if dist.get_rank(group) < 0:
        return
    made: Any = dist.group.WORLD if group is None else group
    limit = {} if timeout is None else {"timeout": timeout}
    made.monitored_barrier(wait_all_ranks=wait_all_ranks, **limit)
