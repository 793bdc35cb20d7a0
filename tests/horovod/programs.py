# SPDX-License-Identifier: Apache-2.0
"""What ranks run, a function each."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import queue
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch._dynamo  # optimizers import it at their first use, in each rank that is forked

import tensorwire.horovod.torch as hvd
import torch
from tensorwire.horovod import process


def refused(call: Callable[[], Any], kind: type[Exception] = ValueError) -> str:
    try:
        call()
    except kind as error:
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
        "wide": hvd.allreduce(torch.tensor([2**60 + 1, 2**60 + 4 * rank])).tolist(),
        "wide rows": hvd.reducescatter(torch.full((size,), 2**60 + 1)).tolist(),
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


def begun_and_grouped() -> Any:
    """Two ranks, by the names that begin operations, change tensors in place or take many. What
    came out otherwise than it should."""
    rank, end = hvd.rank(), hvd.synchronize
    mine = torch.tensor([rank + 1.0, 2.0 * rank])
    both = [mine, mine.double()]
    some = mine[: rank + 1]  # ranks have different rows
    rows = torch.arange(4.0) + 10 * rank
    slices: Any = torch.sparse_coo_tensor(
        torch.tensor([[0, rank + 1]]), torch.tensor([1.0, rank + 1.0]), (3,)
    )
    in_place = [mine.clone() for _ in range(7)]
    written = [
        end(hvd.allreduce_async_(in_place[0], op=hvd.Sum)),
        *hvd.grouped_allreduce_(in_place[1:3], op=hvd.Max),
        *end(hvd.grouped_allreduce_async_(in_place[3:5], op=hvd.Sum)),
        hvd.broadcast_(in_place[5], 1),
        end(hvd.broadcast_async_(in_place[6], 0)),
    ]
    uneven, counts = end(hvd.alltoall_async(rows, splits=[1, 3]))
    found: list[tuple[Any, Any]] = [
        ([each is other for each, other in zip(written, in_place, strict=True)], [True] * 7),
        (torch.stack(in_place), [[3, 2], [2, 2], [2, 2], [3, 2], [3, 2], [2, 2], [1, 0]]),
        (hvd.allreduce(mine, op=hvd.Min), [1, 0]),
        (hvd.allreduce(mine.long(), op=hvd.Min), [1, 0]),
        # Divided and scaled at once: 3 / 2 is no whole number.
        (hvd.allreduce(mine.long(), postscale_factor=2.0), [3, 2]),
        (hvd.reducescatter(mine.long(), postscale_factor=2.0), [[3], [2]][rank]),
        (torch.stack(end(hvd.grouped_allreduce_async(both[:1] * 2))), [[1.5, 1]] * 2),
        (end(hvd.broadcast_async(mine, 1)), [2, 2]),
        (end(hvd.allgather_async(some)), [1, 2, 2]),
        *zip(hvd.grouped_allgather([some, both[1]]), ([1, 2, 2], [1, 0, 2, 2]), strict=True),
        *zip(end(hvd.grouped_allgather_async(both)), [[1, 0, 2, 2]] * 2, strict=True),
        (hvd.alltoall(rows), [[0, 1, 10, 11], [2, 3, 12, 13]][rank]),
        *zip(
            end(hvd.alltoall_async(rows)),
            [[[0, 1, 10, 11], [2, 3, 12, 13]][rank], [2, 2]],
            strict=True,
        ),
        (uneven, [[0, 10], [1, 2, 3, 11, 12, 13]][rank]),
        (counts, [[1, 1], [3, 3]][rank]),
        (end(hvd.reducescatter_async(rows, op=hvd.Sum)), [[10, 12], [14, 16]][rank]),
        *zip(
            hvd.grouped_reducescatter([rows, rows.double()], op=hvd.Sum),
            [[[10, 12], [14, 16]][rank]] * 2,
            strict=True,
        ),
        *zip(
            end(hvd.grouped_reducescatter_async([rows, rows.double()])),
            [[[5, 6], [7, 8]][rank]] * 2,
            strict=True,
        ),
        (hvd.sparse_allreduce_async(slices, "s", hvd.Sum)().to_dense(), [2, 1, 2]),
        (hvd.sparse_allreduce_async(slices, "a", hvd.Average)().to_dense(), [1, 0.5, 1]),
    ]
    # Rank 1 asks for it after the barrier, to which rank 0 has not come yet.
    late = hvd.allreduce_async(mine, name="late") if rank == 0 else None
    found.append((late is not None and hvd.poll(late), False))
    hvd.barrier()
    late = late or hvd.allreduce_async(mine, name="late")
    found += [(end(late), [1.5, 1]), (hvd.poll(late), True)]
    plain = [(getattr(each, "tolist", lambda each=each: each)(), like) for each, like in found]
    return [pair for pair in plain if pair[0] != pair[1]]


def tuned() -> Any:
    """What of variables of the environment: the cycle's seconds, in how many of five times a name
    that comes again takes messages, and how often two tensors that become ready at once are copied
    into a buffer, by the timeline of rank 0."""
    running = process.runtime()
    exchange, exchanged = running._exchange, []

    def counted(message: bytes) -> list[bytes]:
        exchanged.append(message)
        return exchange(message)

    running._exchange = counted  # type: ignore[method-assign]
    seen = []
    for _ in range(6):
        hvd.allreduce(torch.ones(1), name="again")
        seen.append(len(exchanged))
    messages = sum(before < after for before, after in itertools.pairwise(seen))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timeline.json"
        hvd.start_timeline(str(path))
        with running._changed:  # the thread sees both, or none
            handles = [hvd.allreduce_async(torch.ones(4), name=name) for name in "ab"]
        ended = [hvd.synchronize(handle).tolist() for handle in handles]
        hvd.stop_timeline()
        hvd.allreduce(torch.ones(1), name="not told")
        events = json.loads(path.read_text()) if hvd.rank() == 0 else []
    copied = sum(event.get("name") == "MEMCPY_IN_FUSION_BUFFER" for event in events)
    told = sorted({event["args"]["name"] for event in events if event["ph"] == "M"})
    return [running._settings.cycle_seconds, messages, copied, told, ended]


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


def refused_by_all() -> Any:
    """What no operation takes, and then one that goes on."""
    some = hvd.add_process_set([0, 1])
    said = [
        refused(call)
        for call in (
            lambda: hvd.allreduce(torch.tensor([True])),
            lambda: hvd.reducescatter(torch.tensor([True, False])),
            lambda: hvd.synchronize(hvd.alltoall_async(torch.tensor(1.0))),
        )
    ]
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(1), name="alone", process_set=some)
    removed = hvd.remove_process_set(some)
    if hvd.rank() == 0:
        try:
            hvd.synchronize(handle)
        except hvd.HorovodInternalError as error:
            said.append(str(error))
    nothing = hvd.grouped_allreduce([], op=hvd.Sum)
    return [*said, removed, nothing, hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist()]


def objects() -> Any:
    """What rank 1 cannot send is told to both ranks; what both have got of the rest."""
    said = []
    for leaf in (torch.eye(2).to_sparse(), torch.ones(2, device="meta"), "\ud800"):
        mine = [leaf] if hvd.rank() == 1 else None
        said.append(refused(partial(hvd.broadcast_object, mine, 1), TypeError))
        said.append(refused(partial(hvd.allgather_object, mine), TypeError))
    waves = torch.tensor([1.0 + 2.0j])
    views = [waves.conj(), waves.conj().imag] if hvd.rank() == 1 else None
    conjugate, negative = hvd.broadcast_object(views, 1)
    said = [each.removeprefix("of rank 1: ") for each in said]
    return [said, conjugate.imag.tolist(), negative.tolist()]


def uneven() -> Any:
    found = [
        hvd.allreduce(torch.ones(2), op=hvd.Sum, name=f"step{i}").tolist()
        for i in range(hvd.rank() + 1)
    ]
    return [found, hvd.join()]


def outstanding_while_joined() -> Any:
    """Rank 1 joins while it still asks for one of the two tensors that are then reduced as one."""
    mine = {name: torch.full((3,), value + hvd.rank()) for name, value in (("a", 1.0), ("b", 10.0))}
    for name, tensor in mine.items():  # from now on both are cached
        hvd.allreduce(tensor, op=hvd.Sum, name=name)
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(mine["b"], op=hvd.Sum, name="b")
        hvd.join()
        return [hvd.synchronize(handle).tolist()]
    alone = hvd.allreduce(mine["a"], op=hvd.Sum, name="once rank 1 has joined")
    with process.runtime()._changed:  # the thread sees both
        handles = [
            hvd.allreduce_async(tensor, op=hvd.Sum, name=name) for name, tensor in mine.items()
        ]
    found = [alone, *map(hvd.synchronize, handles)]
    hvd.join()
    return [each.tolist() for each in found]


def sets() -> Any:
    both = hvd.add_process_set([0, 1])
    found = None
    if both.included():
        found = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=both).tolist()
        hvd.barrier(process_set=both)
    hvd.barrier()
    everybody = hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist()  # not the first for some
    return [both.process_set_id, both.rank(), found, everybody, hvd.remove_process_set(both)]


def set_that_fails() -> Any:
    """The group of the first two ranks fails, and no other one. What is said on each rank, and what
    a sum then is of the job made anew."""
    both = hvd.add_process_set([0, 1])
    running = process.runtime()
    if hvd.rank() == 0:
        running._groups[1].abort("the two have had enough")
    mine = both if both.included() else hvd.global_process_set
    said = refused(
        lambda: hvd.allreduce(torch.ones(1), name="a", process_set=mine), hvd.HorovodInternalError
    )
    process.regroup()
    return [said, hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist()]


def numbers() -> Any:
    """Ranks as NumPy and PyTorch have them. What is none, and what cannot be told to others, is
    refused, and the job goes on."""
    mine = torch.tensor([hvd.rank()])
    some = hvd.add_process_set(np.arange(2))
    others: Any = [np.int64(1), np.array(1), torch.tensor(1)]
    found = [hvd.broadcast(mine, each).item() for each in others]
    if some.included():
        found += [hvd.broadcast(mine, each, process_set=some).item() for each in others]
    root: Any = 0.5
    said = [
        refused(lambda: hvd.broadcast(mine, root), TypeError),
        refused(lambda: hvd.add_process_set([root]), TypeError),
        refused(lambda: hvd.allreduce(mine, name="\ud800")),
    ]
    return [found, said, hvd.allreduce(mine, op=hvd.Sum).item()]


def sets_of_another_job() -> Any:
    """A process set outlives its job as an object only, until it is added again."""
    second = hvd.add_process_set([1])
    hvd.shutdown()
    hvd.init()
    said = [refused(second.included)]
    first = hvd.add_process_set([0])  # has the number that the other one had
    said.append(refused(second.rank))
    removed = hvd.remove_process_set(second)
    again = hvd.add_process_set(second) is second
    said.append(refused(lambda: hvd.add_process_set(second)))
    mine = first if hvd.rank() == 0 else second
    found = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=mine).tolist()
    return [said, removed, again, [first.rank(), second.rank()], found]


def gradients() -> Any:
    mine: Any = torch.full((2,), hvd.rank() + 1.0, requires_grad=True)
    (hvd.allgather(mine) * torch.arange(2.0 * hvd.size())).sum().backward()
    gathered = mine.grad.tolist()
    mine.grad = None
    hvd.allreduce(mine, op=hvd.Sum).sum().backward()
    found = [gathered, mine.grad.tolist()]
    operations: list[Callable[[Any], Any]] = [
        lambda each: hvd.broadcast(each, 1),
        lambda each: hvd.alltoall(each, splits=[1, 2])[0],
        lambda each: hvd.reducescatter(each),
        lambda each: hvd.reducescatter(each, op=hvd.Sum, postscale_factor=0.25),
    ]
    for operation in operations:
        three: Any = torch.ones(3, requires_grad=True)
        result = operation(three)
        weights = torch.arange(1.0, 1.0 + len(result)) * (hvd.rank() + 1)
        (result * weights).sum().backward()
        found.append(three.grad.tolist())
    return [found, batch_norm((2,)), batch_norm((2, 4, 4), affine=False)]


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


def train_unnamed() -> Any:
    """The optimizer is told no names, and other operations have none either."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), hvd.SyncBatchNorm(2), torch.nn.Linear(2, 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.Generator().manual_seed(hvd.rank())
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.rand(4, 3, generator=data)).square().mean()
        loss.backward()
        losses.append(hvd.allreduce(loss.detach()).item())
        optimizer.step()
    return [losses, [each.tolist() for each in model.parameters()]]


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


def train_adasum_among_others_later() -> Any:
    """An optimizer that was made in a job of one rank, as in an elastic job."""
    two = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE")}
    rank = hvd.rank()
    hvd.shutdown()
    os.environ.update(RANK="0", WORLD_SIZE="1")
    hvd.init()
    weight: Any = torch.zeros(2, requires_grad=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum)
    found = []
    for job in ({}, two):
        if job:
            hvd.shutdown()
            os.environ.update(job)
            hvd.init()
        weight.grad = torch.zeros(2)
        weight.grad[rank] = -1.0  # orthogonal: both count
        optimizer.step()
        found.append(weight.tolist())
        with torch.no_grad():
            weight.zero_()
    return found


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


def bits() -> list[str]:
    """The bits of sums that depend on their order, in a job of each pair of settings that BITS
    has: TENSORWIRE_DETERMINISTIC and TENSORWIRE_TUNING."""
    found = []
    mine = torch.rand(10_000, generator=torch.Generator().manual_seed(hvd.rank()))
    for deterministic, tuning in json.loads(os.environ["BITS"]):
        hvd.shutdown()
        os.environ.update(TENSORWIRE_DETERMINISTIC=deterministic, TENSORWIRE_TUNING=tuning)
        hvd.init()
        total = hvd.allreduce(mine, op=hvd.Sum)
        found.append(hashlib.sha256(total.numpy().tobytes()).hexdigest())
    return found


def tell(program: Callable[[], Any]) -> None:
    """Prints what it returns, or why it has failed."""
    torch.set_num_threads(1)
    hvd.init()
    try:
        outcome = (True, program())
    except BaseException:
        outcome = (False, traceback.format_exc())
    finally:
        hvd.shutdown()
    print(json.dumps(outcome))


def main(program: str) -> None:
    tell(globals()[program])
