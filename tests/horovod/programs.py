# SPDX-License-Identifier: Apache-2.0
"""What ranks run, a function each."""

from __future__ import annotations

import json
import logging
import os
import queue
import traceback
from collections.abc import Callable
from typing import Any

import torch._dynamo  # optimizers import it at their first use, in each rank that is forked

import tensorwire.horovod.torch as hvd
import torch


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def operations() -> Any:
    rank, size = hvd.rank(), hvd.size()
    mine = torch.full((3,), rank + 1.0)
    rows = torch.arange(size + 1) + 10 * rank
    got, splits = hvd.alltoall(rows, splits=[2] + [1] * (size - 1))
    half = torch.full((3,), rank + 1.0, dtype=torch.bfloat16)
    strided = torch.zeros(2, 3).t().fill_(rank)
    hvd.allreduce_(strided, op=hvd.Sum)
    return {
        "average": hvd.allreduce(mine).tolist(),
        "sum": hvd.allreduce(mine, op=hvd.Sum, postscale_factor=0.5).tolist(),
        "product": hvd.allreduce(mine, op=hvd.Product).tolist(),
        "max": hvd.allreduce(mine, op=hvd.Max).tolist(),
        "adasum": hvd.allreduce(mine, op=hvd.Adasum).tolist(),
        "no adasum": refused(lambda: hvd.allreduce(torch.tensor([1]), op=hvd.Adasum)),
        "whole": hvd.allreduce(torch.tensor([rank, 5]), op=hvd.Average).tolist(),
        "half": hvd.allreduce(half, op=hvd.Sum).float().tolist(),
        "fp16": hvd.allreduce(mine, compression=hvd.Compression.fp16).tolist(),
        "grouped": [
            each.tolist() for each in hvd.grouped_allreduce([mine, mine.double()], op=hvd.Sum)
        ],
        "strided": strided.tolist(),
        "empty": hvd.allreduce(torch.zeros(0)).tolist(),
        "gather": hvd.allgather(torch.arange(rank + 1)).tolist(),
        "broadcast": hvd.broadcast(mine, size - 1).tolist(),
        "alltoall": [got.tolist(), splits.tolist()],
        "reducescatter": hvd.reducescatter(torch.arange(5.0), op=hvd.Sum).tolist(),
        "object": hvd.broadcast_object({"a": (1, [None])} if rank == 0 else None),
        "objects": hvd.allgather_object(rank),
        "local": [hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()],
    }


def orders() -> Any:
    """Each rank asks in an order of its own."""
    names = [f"t{i}" for i in range(20)]
    for _ in range(3):
        mine = names if hvd.rank() % 2 else names[::-1]
        handles = {
            name: hvd.allreduce_async(torch.full((10,), float(name[1:])), name=name, op=hvd.Sum)
            for name in mine
        }
        found = {name: hvd.synchronize(handle)[0].item() for name, handle in handles.items()}
    return [found[name] for name in names]


def mistakes() -> Any:
    said = []
    try:
        hvd.allreduce(torch.ones(hvd.rank() + 1), name="a")
    except hvd.HorovodInternalError as error:
        said.append(str(error))
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(1), name="b")
        try:
            hvd.allreduce_async(torch.ones(1), name="b")
        except hvd.HorovodInternalError as error:
            said.append(str(error))
    hvd.allreduce(torch.ones(1), name="tried")  # until then "b" is outstanding
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(torch.ones(1), name="b")
    try:
        hvd.broadcast_object(print, 0)
    except TypeError as error:
        said.append(str(error))
    said.append(hvd.synchronize(handle).tolist())
    return said


def uneven() -> Any:
    found = [
        hvd.allreduce(torch.ones(2), op=hvd.Sum, name=f"step{i}").tolist()
        for i in range(hvd.rank() + 1)
    ]
    return [found, hvd.join()]


def sets() -> Any:
    both = hvd.add_process_set([0, 1])
    found = None
    if both.included():
        found = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=both).tolist()
    return [both.process_set_id, both.rank(), found, hvd.remove_process_set(both)]


def gradients() -> Any:
    mine: Any = torch.full((2,), hvd.rank() + 1.0, requires_grad=True)
    (hvd.allgather(mine) * torch.arange(2.0 * hvd.size())).sum().backward()
    gathered = mine.grad.tolist()
    mine.grad = None
    hvd.allreduce(mine, op=hvd.Sum).sum().backward()
    return [gathered, mine.grad.tolist(), batch_norm((2,)), batch_norm((2, 4, 4), affine=False)]


def batch_norm(shape: tuple[int, ...], **more: Any) -> list[float]:
    """How far SyncBatchNorm on uneven shares of a batch is from BatchNorm on all of it."""
    torch.manual_seed(3)
    shares = [slice(0, 3), slice(3, 8)]
    whole, weights = torch.randn(2, 8, *shape).unbind()
    plain: Any = (torch.nn.BatchNorm1d if len(shape) == 1 else torch.nn.BatchNorm2d)(2, **more)
    synced = hvd.SyncBatchNorm(2, **more)
    everything: Any = (whole * 3 + 50).requires_grad_()
    mine = everything[shares[hvd.rank()]].detach().requires_grad_()
    for _ in range(2):
        wanted, found = plain(everything), synced(mine)
        (wanted * weights).sum().backward()
        (found * weights[shares[hvd.rank()]]).sum().backward()
    pairs = [
        (found, wanted[shares[hvd.rank()]]),
        (mine.grad, everything.grad[shares[hvd.rank()]]),
        (synced.running_mean, plain.running_mean),
        (synced.running_var, plain.running_var),
        *(
            (hvd.allreduce(each.grad, op=hvd.Sum), other.grad)
            for each, other in zip(synced.parameters(), plain.parameters(), strict=True)
        ),
        (synced.eval()(mine), plain.eval()(everything)[shares[hvd.rank()]]),
    ]
    return [float((each - other).abs().max()) for each, other in pairs]


def train(**more: Any) -> Any:
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), **more
    )
    data = torch.Generator().manual_seed(7)
    for _ in range(4):
        optimizer.zero_grad()
        for _ in range(more.get("backward_passes_per_step", 1)):
            batch = torch.rand(size, 8, 6, generator=data)
            model(batch[rank]).square().mean().backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
    return [each.tolist() for each in model.parameters()]


def train_alone() -> Any:
    """The same on the data of two ranks, by one."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(7)
    for _ in range(4):
        optimizer.zero_grad()
        batch = torch.rand(2, 8, 6, generator=data)
        model(batch.flatten(0, 1)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [each.tolist() for each in model.parameters()]


def train_grouped() -> Any:
    return train(groups=2)


def train_adasum() -> Any:
    rank = hvd.rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), op=hvd.Adasum
    )
    data = torch.Generator().manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(8, 6, generator=data)).square().mean().backward()
        optimizer.synchronize()
        optimizer.step()
    try:
        optimizer.skip_synchronize()
    except AssertionError as error:
        said = str(error)
    trained = [each.tolist() for each in model.parameters()]
    return [trained, said, _train_adasum_alone() if rank == 0 else None]


def _train_adasum_alone() -> Any:
    """The same by one process, by the paper's formula."""
    models, optimizers, data = [], [], []
    for rank in range(2):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
        models.append(model)
        optimizers.append(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        data.append(torch.Generator().manual_seed(rank))
    for _ in range(3):
        starts = [each.detach().clone() for each in models[0].parameters()]
        for model, optimizer, generator in zip(models, optimizers, data, strict=True):
            optimizer.zero_grad()
            model(torch.rand(8, 6, generator=generator)).square().mean().backward()
            optimizer.step()
        pairs = zip(*(model.parameters() for model in models), strict=True)
        with torch.no_grad():
            for start, (one, other) in zip(starts, pairs, strict=True):
                a, b = one - start, other - start
                both = (a * b).sum() / 2
                step = (1 - both / (a * a).sum()) * a + (1 - both / (b * b).sum()) * b
                one.copy_(start + step)
                other.copy_(start + step)
    return [each.tolist() for each in models[0].parameters()]


def train_passes() -> Any:
    return train(backward_passes_per_step=2, gradient_predivide_factor=2.0)


def die() -> Any:
    """Rank 1 is killed while rank 0 waits for it."""
    hvd.allreduce(torch.ones(1), name="first")
    if hvd.rank() == 1:
        os.kill(os.getpid(), 9)
    try:
        hvd.allreduce(torch.ones(1), name="second")
    except hvd.HorovodInternalError as error:
        return str(error)


def stall() -> Any:
    """Rank 0 asks for what rank 1 does not ask for until rank 0 has warned of it."""
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    handler = logging.Handler()
    handler.emit = lambda record: told.put(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tensorwire").addHandler(handler)
    said = ""
    if hvd.rank() == 0:
        late = hvd.allreduce_async(torch.ones(1), name="late")
        while "late" not in said:
            said = told.get(timeout=30)
        hvd.allreduce(torch.ones(1), name="warned")
    else:
        hvd.allreduce(torch.ones(1), name="warned")
        late = hvd.allreduce_async(torch.ones(1), name="late")
    return [said, hvd.synchronize(late).tolist()]


def commit() -> Any:
    state = hvd.elastic.TorchState(batch=3)
    state.commit()
    state.batch = 4
    state.restore()
    return state.batch


def leave_and_come_back() -> Any:
    said = ""
    if hvd.rank() == 0:
        try:
            hvd.allreduce(torch.ones(1), name="alone")
        except hvd.HorovodInternalError as error:
            said = str(error)
    hvd.shutdown()
    try:
        hvd.rank()
    except ValueError as error:
        said = f"{said}; {error}"
    hvd.init()
    return [said, hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist()]


def main(program: str) -> None:
    """Prints what it returns, or why it has failed."""
    torch.set_num_threads(1)
    hvd.init()
    try:
        outcome = (True, globals()[program]())
    except BaseException:
        outcome = (False, traceback.format_exc())
    finally:
        hvd.shutdown()
    print(json.dumps(outcome))
