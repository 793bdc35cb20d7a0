# SPDX-License-Identifier: Apache-2.0
"""Ranks of a group of torch.distributed, whatever its back end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from tensorwire.bench.suites.collectives.contender import (
    Call,
    Meeting,
    Messages,
    Rank,
    exchange,
)
from tensorwire.bench.suites.collectives.operations import (
    OPERATIONS,
    PARTS,
    ROOT,
    Array,
    exchanged,
    portions,
)


@cache
def why_no_torch() -> str | None:
    """None where PyTorch is installed, and has torch.distributed."""
    if find_spec("torch") is None:
        return "PyTorch is not installed: pip install 'tensorwire[torch]'"
    import torch.distributed as dist

    if not dist.is_available():
        return "this PyTorch has no torch.distributed: pip install 'tensorwire[torch]'"
    return None


def why_no_device() -> str | None:
    """None where PyTorch has a CUDA device."""
    if (reason := why_no_torch()) is not None:
        return reason
    import torch

    if torch.version.cuda is None:
        return "this PyTorch is for CPUs only: install one for CUDA"
    return None if torch.cuda.is_available() else "PyTorch finds no CUDA device"


_BUCKET_BYTES: Final = 250 << 20
"""Of a coalesced broadcast, as ``DistributedDataParallel`` has it."""


class _Rank(Rank):
    def __init__(self, torch: Any, dist: Any, path: str, device: Any) -> None:
        self._torch = torch
        self._dist = dist
        self.path = path
        self._device = device
        self._taken: tuple[Any, Array] | None = None
        # PyTorch 2.13 has new names for these, and warns of those that 2.4 has.
        self._gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        self._scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def barrier(self) -> None:
        self._dist.barrier()

    def call(self, case: str, given: Array, taken: Array) -> Call:
        gives, takes = self._tensor(given), self._tensor(taken)
        if self._device is None:
            return self._of(case, gives, takes)
        same = given is taken
        gives = gives.to(self._device, copy=True)
        takes = gives if same else takes.to(self._device, copy=True)
        self._taken = takes, taken
        return self._ended(self._of(case, gives, takes))

    def fetch(self) -> None:
        if self._taken is not None:
            there, here = self._taken
            self._tensor(here).copy_(there)

    def _tensor(self, array: Array) -> Any:
        """The same memory; PyTorch knows no bfloat16 of NumPy's."""
        if array.dtype.name == "bfloat16":
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)

    def _ended(self, call: Call) -> Call:
        """Libraries differ in whether the result is there when a call returns."""
        synchronize = self._torch.cuda.current_stream(self._device).synchronize

        def whole() -> None:
            call()
            synchronize()

        return whole

    def _of(self, case: str, gives: Any, takes: Any) -> Call:
        dist = self._dist
        if OPERATIONS[case].paired:
            by = Messages(
                dist.send,
                dist.recv,
                lambda array, peer: dist.isend(array, peer).wait,
                lambda array, peer: dist.irecv(array, peer).wait,
            )
            return exchange(by, case, dist.get_rank(), gives, takes)
        if OPERATIONS[case].uneven:
            return self._uneven(case, gives, takes)
        if OPERATIONS[case].coalesced:
            return self._coalesced(case, gives, takes)
        calls: dict[str, Call] = {
            "barrier": dist.barrier,
            "all_reduce": lambda: dist.all_reduce(gives),
            "reduce": lambda: dist.reduce(gives, ROOT),
            "broadcast": lambda: dist.broadcast(gives, ROOT),
            "all_gather": lambda: self._gather(takes, gives),
            "reduce_scatter": lambda: self._scatter(takes, gives),
            "all_to_all": lambda: dist.all_to_all_single(takes, gives),
        }
        if case in calls:
            return calls[case]
        root, size = dist.get_rank() == ROOT, dist.get_world_size()
        many = takes if case == "gather" else gives
        parts = [*many.view(size, -1).unbind(0)] if root else None
        if case == "gather":
            return lambda: dist.gather(gives, parts, dst=ROOT)
        return lambda: dist.scatter(takes, parts, src=ROOT)

    def _uneven(self, case: str, gives: Any, takes: Any) -> Call:
        dist, count = self._dist, max(gives.numel(), takes.numel())
        shares = portions(count, dist.get_world_size())
        if case == "all_gather_v":
            out = [*takes.split(shares)]
            return lambda: dist.all_gather(out, gives)
        if case == "reduce_scatter_v":
            given = [*gives.split(shares)]
            return lambda: dist.reduce_scatter(takes, given)
        each = exchanged(count, dist.get_rank(), dist.get_world_size())
        return lambda: dist.all_to_all_single(takes, gives, each, each)

    def _coalesced(self, case: str, gives: Any, takes: Any) -> Call:
        """As PyTorch's own modules have it: DDP in broadcasts, FSDP in the others."""
        dist = self._dist
        given, taken = gives.chunk(PARTS), takes.chunk(PARTS)
        if case == "broadcast_many":
            group, tensors = dist.group.WORLD, [*given]
            return lambda: dist._broadcast_coalesced(group, tensors, _BUCKET_BYTES, ROOT)
        one: dict[str, Callable[[Any, Any], object]] = {
            "all_reduce_many": lambda to, of: dist.all_reduce(of),
            "all_gather_many": self._gather,
            "reduce_scatter_many": self._scatter,
        }
        call = one[case]

        def all_of_them() -> None:
            with dist._coalescing_manager():
                for to, of in zip(taken, given, strict=True):
                    call(to, of)

        return all_of_them


@contextmanager
def joined(meeting: Meeting, backend: str, path: str) -> Iterator[Rank]:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    import torch.distributed as dist

    import torch

    torch.set_num_threads(1)
    os.makedirs(meeting.folder, mode=0o700, exist_ok=True)
    device = None
    if meeting.device == "cuda":
        device = torch.device("cuda", meeting.rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=f"file://{meeting.folder}/store",
        rank=meeting.rank,
        world_size=meeting.size,
        timeout=timedelta(seconds=meeting.timeout),
    )
    try:
        yield _Rank(torch, dist, path, device)
    finally:
        dist.destroy_process_group()
