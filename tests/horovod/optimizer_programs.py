# SPDX-License-Identifier: Apache-2.0
"""What ranks run with optimizers of PyTorch, a function each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch._dynamo  # optimizers import it at their first use, in each rank that is forked
from tests.horovod.programs import refused, tell

import tensorwire.horovod.torch as hvd
import torch


def scheduled() -> Any:
    """Learning rates after steps of a scheduler that was made with the inner optimizer: after a
    broadcast, a state's synchronization, and its return to that. And whether state is shared."""
    found = []
    for op in (hvd.Average, hvd.Adasum):
        model = torch.nn.Linear(2, 1)
        inner: Any = torch.optim.SGD(model.parameters(), lr=1.0 + hvd.rank(), momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), op=op)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        state = hvd.elastic.TorchState(model, optimizer)
        renewals: list[Callable[[], None]] = [lambda: None, state.sync, state.restore]
        rates = []
        for renew in renewals:
            renew()
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        found.append([rates, inner.state is optimizer.state])
    return found


def train_sparse() -> Any:
    """Three steps with gradients that are reduced as dense ones, and are sparse for the optimizer.
    In the last one rank 1 has none."""
    rank = hvd.rank()
    torch.manual_seed(0)
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(list(table.parameters()), lr=0.1),
        table.named_parameters(),
        sparse_as_dense=True,
    )
    found = []
    for row in (rank, 2, 3 if rank == 0 else None):
        optimizer.zero_grad()
        if row is not None:
            table(torch.tensor([row])).sum().backward()
        optimizer.synchronize()
        gradient: Any = table.weight.grad
        found.append([gradient.sparse_dim(), gradient.to_dense()[:, 0].tolist()])
        with optimizer.skip_synchronize():
            optimizer.step()
    return [found, table.weight.tolist()]


def one_of_two_fails() -> Any:
    """What is said of a gradient, and of a tensor that is broadcast, on whose shapes the ranks
    disagree; and what then has come of others, which get their values once they are waited for."""
    rank = hvd.rank()
    first: Any = torch.ones(rank + 1, requires_grad=True)
    second: Any = torch.ones(2, requires_grad=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([first, second], lr=1.0),
        [("first", first), ("second", second)],
        compression=hvd.Compression.fp16,
    )
    (first.sum() + (rank + 1) * second.sum()).backward()
    strided = torch.full((2, 3), float(rank)).t()
    named = [("first", torch.ones(rank + 1)), ("strided", strided)]
    said = [
        refused(optimizer.synchronize, hvd.HorovodInternalError),
        refused(lambda: hvd.broadcast_parameters(named, 1), hvd.HorovodInternalError),
    ]
    return [said, second.grad.tolist(), strided.tolist()]


def main(program: str) -> None:
    tell(globals()[program])
