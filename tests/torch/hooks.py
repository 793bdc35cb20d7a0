# SPDX-License-Identifier: Apache-2.0
"""Hooks that PyTorch ships for the gradients of ``DistributedDataParallel``, as a program of ranks.

Annotations are no strings here: PyTorch looks at those of hooks.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    optimizer_overlap_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.nn.parallel import DistributedDataParallel

import torch

STEPS = 6
PLAIN_STEPS = 2  # of these, before hooks that begin later

Hook = Callable[..., Any]
Values = list[float]


def _renamed(hook: Hook) -> Hook:
    """PyTorch refuses hooks for bfloat16 by their names where it has no NCCL."""

    def renamed(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        found: torch.futures.Future[torch.Tensor] = hook(state, bucket)
        return found

    return renamed


def _power(rank: int) -> Any:
    return powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=PLAIN_STEPS
    )


def _local(reduces: bool) -> Any:
    alone, _ = vars(dist)["new_subgroups"](1)
    return vars(post_localSGD_hook)["PostLocalSGDState"](None, alone, PLAIN_STEPS, reduces)


def _optimizing() -> Hook:
    from torch.distributed.optim.functional_sgd import _FunctionalSGD

    optimizer = _FunctionalSGD([], lr=0.1, _allow_empty_param_list=True)
    state = vars(optimizer_overlap_hooks)["_OptimizerHookState"](optimizer)
    made: Hook = vars(optimizer_overlap_hooks)["_hook_then_optimizer"](
        default_hooks.allreduce_hook, state
    )
    return made


HOOKS: dict[str, Callable[[], tuple[Any, Hook]]] = {
    "allreduce": lambda: (None, default_hooks.allreduce_hook),
    "fp16": lambda: (None, default_hooks.fp16_compress_hook),
    "bf16": lambda: (None, default_hooks.bf16_compress_hook),
    "bf16, renamed": lambda: (None, _renamed(default_hooks.bf16_compress_hook)),
    "fp16 around allreduce": lambda: (
        None,
        default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
    ),
    "bf16 around allreduce, renamed": lambda: (
        None,
        _renamed(default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)),
    ),
    "PowerSGD": lambda: (_power(1), powerSGD_hook.powerSGD_hook),
    "PowerSGD of rank 2": lambda: (_power(2), powerSGD_hook.powerSGD_hook),
    "fp16 around PowerSGD": lambda: (
        _power(1),
        default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
    ),
    "batched PowerSGD": lambda: (_power(1), powerSGD_hook.batched_powerSGD_hook),
    "post-local SGD": lambda: (_local(True), post_localSGD_hook.post_localSGD_hook),
    "post-local SGD without all-reduce": lambda: (
        _local(False),
        post_localSGD_hook.post_localSGD_hook,
    ),
    "quantized by tensor": lambda: (None, quantization_hooks.quantization_pertensor_hook),
    "quantized by channel": lambda: (None, quantization_hooks.quantization_perchannel_hook),
    "optimizer after allreduce": lambda: (None, _optimizing()),
    "nothing exchanged": lambda: (None, debugging_hooks.noop_hook),
}


def _model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))


def _train(
    rank: int, shared: DistributedDataParallel, step: Callable[[], Any], skipped: int = 0
) -> Values:
    torch.manual_seed(2 + rank)
    for count in range(STEPS):
        shared(torch.randn(4, 16)).square().mean().backward()
        if count >= skipped:
            step()
        shared.zero_grad()
    return [value for each in shared.parameters() for value in each.flatten().tolist()]


def hooked(rank: int, size: int) -> dict[str, Values | str]:
    """The parameters after training with each hook, or what PyTorch raises instead."""
    found: dict[str, Values | str] = {}
    for name, make in HOOKS.items():
        shared = DistributedDataParallel(_model())
        try:
            shared.register_comm_hook(*make())
            optimizer = torch.optim.SGD(shared.parameters(), lr=0.05)
            found[name] = _train(rank, shared, optimizer.step)
        except (AssertionError, RuntimeError, TypeError) as error:
            found[name] = type(error).__name__
    return found


def sharded(rank: int, size: int) -> list[Values]:
    """With an optimizer's steps shared out among ranks: after backward, and by each of two hooks
    within it, which leave the first two steps out."""
    from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer

    shared = DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(shared.parameters(), torch.optim.SGD, lr=0.05)
    found = [_train(rank, shared, optimizer.step, skipped=2)]
    for hook in (
        ddp_zero_hook.hook_with_zero_step,
        ddp_zero_hook.hook_with_zero_step_interleaved,
    ):
        shared = DistributedDataParallel(_model())
        optimizer = ZeroRedundancyOptimizer(
            shared.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.05
        )
        shared.register_comm_hook(None, hook(default_hooks.allreduce_hook, shared, optimizer))
        found.append(_train(rank, shared, lambda: None))
    return found
