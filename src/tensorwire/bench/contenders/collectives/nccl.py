# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with NCCL, for tensors of CUDA devices. It wants a device for each rank."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tensorwire.bench.suites.collectives.contender import Contender, Meeting, Rank
from tensorwire.bench.suites.collectives.operations import DTYPES
from tensorwire.bench.suites.collectives.torch_ranks import joined, why_no_device


class Nccl(Contender):
    transports = ("cuda",)
    packages = ("torch",)
    dtypes = frozenset(DTYPES)
    devices = frozenset({"cuda"})

    def viable(self, transport: str) -> str | None:
        if (reason := why_no_device()) is not None:
            return reason
        import torch.distributed as dist

        return None if dist.is_nccl_available() else "this PyTorch has no NCCL"

    def join(self, meeting: Meeting) -> AbstractContextManager[Rank]:
        return joined(meeting, "nccl", "cuda")
