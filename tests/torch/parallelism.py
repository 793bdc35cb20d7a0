# SPDX-License-Identifier: Apache-2.0
"""PyTorch's ways to share the training of a model out, as programs of ranks. Each returns what the
ranks that share it have computed, and what one process computes of the whole."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

import torch

Values = list[float]
INPUTS, ROWS, STEPS = 16, 4, 3


def _model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))


def _batches(size: int) -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randn(size, ROWS, INPUTS)


def _losses(model: Any, parameters: Any, batch: torch.Tensor) -> Values:
    """Averaged over all ranks."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    found: Values = []
    for _ in range(STEPS):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.detach().clone()
        dist.all_reduce(value, dist.ReduceOp.AVG)
        found.append(value.item())
    return found


def _whole(size: int) -> Values:
    model = _model()
    return _losses(model, model.parameters(), _batches(size).flatten(0, 1))


def fully_sharded_module(rank: int, size: int) -> tuple[Values, Values]:
    """``FullyShardedDataParallel``, which came before ``fully_shard``."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    shared = FullyShardedDataParallel(_model(), device_id=torch.device("cpu"), use_orig_params=True)
    return _losses(shared, shared.parameters(), _batches(size)[rank]), _whole(size)


def tensor_parallel(rank: int, size: int) -> tuple[Values, Values]:
    """Columns of one layer and rows of the next on each rank of a mesh."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (size,))
    shared = parallelize_module(_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    batch = _batches(size).flatten(0, 1)
    return _losses(shared, shared.parameters(), batch), _whole(size)


def pipelined(rank: int, size: int) -> tuple[Values, Values]:
    """A layer on each of two ranks, between which activations and gradients go as messages."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    first, relu, last = _model()
    part = torch.nn.Sequential(first, relu) if rank == 0 else last
    example = torch.empty(ROWS * size // 2, 32 if rank else INPUTS)
    stage = PipelineStage(part, rank, size, torch.device("cpu"), input_args=(example,))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=_mean_of_squares)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    batch = _batches(size).flatten(0, 1)
    found: Values = []
    for _ in range(STEPS):
        parts: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(target=torch.empty(len(batch)), losses=parts)
        optimizer.step()
        optimizer.zero_grad()
        value = torch.stack(parts).mean().detach() if parts else torch.zeros(())
        dist.broadcast(value, 1)
        found.append(value.item())
    return found, _whole(size)


def _mean_of_squares(found: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return found.square().mean()
