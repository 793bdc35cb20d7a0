# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with gloo, PyTorch's own back end for tensors of the CPU, over 127.0.0.1. With
tensors of CUDA devices it has all operations but messages."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from tensorwire.bench.suites.collectives.contender import Contender, Meeting, Rank
from tensorwire.bench.suites.collectives.operations import DTYPES, OPERATIONS
from tensorwire.bench.suites.collectives.torch_ranks import joined, why_no_torch


class Gloo(Contender):
    transports = ("tcp",)
    packages = ("torch",)
    dtypes = frozenset(DTYPES)
    devices = frozenset({"cpu", "cuda"})
    lacks: Mapping[str, str] = {"all_gather_v": "its all_gather takes shares of one size only"}

    def cases_on(self, device: str) -> frozenset[str]:
        found = super().cases_on(device)
        paired = {case for case, each in OPERATIONS.items() if each.paired}
        return found - paired if device == "cuda" else found

    def viable(self, transport: str) -> str | None:
        if (reason := why_no_torch()) is not None:
            return reason
        import torch.distributed as dist

        if not dist.is_gloo_available():
            return "this PyTorch has no gloo: pip install 'tensorwire[torch]'"
        return None

    def join(self, meeting: Meeting) -> AbstractContextManager[Rank]:
        return joined(meeting, "gloo", "tcp")
