# SPDX-License-Identifier: Apache-2.0
"""What ranks run with tensors of a CUDA device, which all of them share. Each returns what can be
sent: no tensors."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import torch
from tensorwire import _core

CUDA = torch.device("cuda", 0)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
OP = dist.ReduceOp


def message_of(call: Callable[[], Any]) -> str:
    """Of what it raises."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def ways() -> list[str]:
    """Those that operations on devices have gone in this process."""
    found = {way for _, way, _, _ in _core.group_statistics()}
    return sorted(way for way in found if way.startswith("device"))


def values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(0, 100, (count,), generator=generator).to(dtype)


def moves(rank: int, size: int, counts: list[int], dtypes: list[torch.dtype]) -> list[str]:
    """Each operation on the device's tensors, and on the host's."""
    wrong: list[str] = []

    def both(name: str, run: Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]) -> None:
        """`run` is given what places a tensor, and returns tensors to compare."""
        wanted = run(lambda tensor: tensor.clone())
        try:
            found = run(lambda tensor: tensor.to(CUDA))
        except RuntimeError as error:
            wrong.append(f"{name}: {error}")
            raise
        for one, other in zip(found, wanted, strict=True):
            if not torch.equal(one.cpu(), other):
                wrong.append(f"{name}: {one.flatten()[:4]} is not {other.flatten()[:4]}")
                return

    for count in counts:
        for dtype in dtypes:
            mine = values(rank, count, dtype)
            empty = torch.zeros_like(mine)
            flat = torch.zeros(count * size, dtype=dtype)
            shares = values(rank, count * size, dtype)
            name = f"{dtype} {count}"

            def all_reduce(place: Any, mine: torch.Tensor = mine) -> list[torch.Tensor]:
                tensor = place(mine)
                dist.all_reduce(tensor)
                return [tensor]

            def broadcast(place: Any, mine: torch.Tensor = mine) -> list[torch.Tensor]:
                tensor = place(mine)
                dist.broadcast(tensor, 1)
                return [tensor]

            def reduce(place: Any, mine: torch.Tensor = mine) -> list[torch.Tensor]:
                tensor = place(mine)
                dist.reduce(tensor, 1)
                return [tensor] if rank == 1 else []

            def all_gather(place: Any, mine: Any = mine, flat: Any = flat) -> list[torch.Tensor]:
                out = place(flat)
                dist.all_gather_into_tensor(out, place(mine))
                parts = [*place(flat).chunk(size)]
                dist.all_gather(parts, place(mine))
                return [out, *parts]

            def scatter(place: Any, empty: Any = empty, shares: Any = shares) -> list[torch.Tensor]:
                out = place(empty)
                dist.scatter(out, [*place(shares).chunk(size)] if rank == 0 else None, 0)
                return [out]

            def gather(place: Any, mine: Any = mine, flat: Any = flat) -> list[torch.Tensor]:
                parts = [*place(flat).chunk(size)] if rank == 0 else None
                dist.gather(place(mine), parts, 0)
                return parts or []

            def reduce_scatter(
                place: Any, empty: Any = empty, shares: Any = shares
            ) -> list[torch.Tensor]:
                out, listed = place(empty), place(empty)
                dist.reduce_scatter_tensor(out, place(shares))
                dist.reduce_scatter(listed, [*place(shares).chunk(size)])
                return [out, listed]

            def all_to_all(
                place: Any, flat: Any = flat, shares: Any = shares
            ) -> list[torch.Tensor]:
                out = place(flat)
                dist.all_to_all_single(out, place(shares))
                parts = [*place(flat).chunk(size)]
                dist.all_to_all(parts, [*place(shares).chunk(size)])
                return [out, *parts]

            for run in (
                *(all_reduce, broadcast, reduce, all_gather),
                *(scatter, gather, reduce_scatter, all_to_all),
            ):
                both(f"{run.__name__} {name}", run)
    dist.barrier()
    return wrong


def reductions(rank: int, size: int, count: int) -> list[str]:
    """Each type with each reduction."""
    wrong: list[str] = []
    more = [OP.BAND, OP.BOR, OP.BXOR]
    small = [torch.float8_e4m3fn, torch.float8_e5m2]
    for dtype in (*FLOATS, *small, *INTEGERS, torch.bool):
        plain = dtype.is_floating_point
        for op in (OP.SUM, OP.AVG, OP.PRODUCT, OP.MIN, OP.MAX, *([] if plain else more)):
            if op == OP.AVG and dtype == torch.bool:
                continue
            mine = values(rank, count, dtype)
            on_host, on_device = mine.clone(), mine.to(CUDA)
            try:
                dist.all_reduce(on_host, op)
                dist.all_reduce(on_device, op)
            except RuntimeError as error:
                wrong.append(f"{dtype} {op}: {error}")
                return wrong
            bits = torch.uint8
            if not torch.equal(on_device.cpu().view(bits), on_host.view(bits)):
                wrong.append(f"{dtype} {op}")
    return wrong


def large(rank: int, size: int, megabytes: int) -> list[bool]:
    count = megabytes << 18
    tensor = torch.full((count,), rank + 1.0, device=CUDA)
    dist.all_reduce(tensor)
    total = size * (size + 1) / 2
    good = [bool((tensor == total).all())]
    tensor.fill_(rank)
    dist.broadcast(tensor, size - 1)
    good.append(bool((tensor == size - 1).all()))
    out = torch.empty(count, device=CUDA)
    dist.all_gather_into_tensor(out, tensor[: count // size] + rank)
    wanted = torch.arange(size, device=CUDA).repeat_interleave(count // size) + size - 1
    good.append(torch.equal(out, wanted.float()))
    return good


def streams(rank: int, size: int) -> list[bool]:
    """What is queued before counts, on whichever stream; results are there after ``wait``."""
    good = []
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    for count in (1000, 1 << 20):
        tensor = torch.zeros(count, device=CUDA)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            tensor.fill_(rank + 1.0)
            dist.all_reduce(tensor)
        with torch.cuda.stream(other):
            copy = tensor.clone()
        other.synchronize()
        good.append(bool((copy == size * (size + 1) / 2).all()))
        with torch.cuda.stream(side):
            tensor.fill_(1.0)
            work = dist.all_reduce(tensor, async_op=True)
            tripled = torch.ones(count, device=CUDA) * 3
            assert work is not None
            work.wait()
            good.append(bool((tensor + tripled == size + 3).all()))
    return good


def beside(rank: int, size: int) -> list[list[bool]]:
    """Another stream works on: the operation does not wait for it. Not in the first round, in which
    CUDA loads what the operation needs, and may wait for all streams then."""
    good = []
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    for count in (1000, 1 << 20):
        tensor = torch.zeros(count, device=CUDA)
        torch.cuda.synchronize()
        rounds = []
        for _ in range(2):
            with torch.cuda.stream(other):
                torch.cuda._sleep(3_000_000_000)
            with torch.cuda.stream(side):
                dist.all_reduce(tensor)
            rounds.append(not other.query())
            other.synchronize()
        good.append(rounds)
    return good


def memory_comes_and_goes(rank: int, size: int) -> tuple[bool, int]:
    """Tensors that are given back to the driver after each operation, at the same addresses or at
    others: whether all results are right, and how many bytes of the device are gone then."""
    count, good, before = 128 << 20, True, 0
    for turn in range(20):
        tensor = torch.full(
            (count + 1024 * (turn % 3),), rank + turn, device=CUDA, dtype=torch.int32
        )
        dist.all_reduce(tensor)
        good = good and bool((tensor == turn * size + size * (size - 1) // 2).all())
        del tensor
        torch.cuda.empty_cache()
        if turn == 3:
            before, _ = torch.cuda.mem_get_info()
    after, _ = torch.cuda.mem_get_info()
    return good, before - after


def asynchronous(rank: int, size: int) -> list[bool]:
    """Many at once, whose tensors are given up meanwhile, and their memory used again."""
    good = []
    for count in (10_000, 1 << 20):
        works = []
        for each in range(20):
            tensor = torch.full((count,), float(rank + each), device=CUDA)
            works.append(dist.all_reduce(tensor, async_op=True))
            del tensor
            torch.full((count,), -1.0, device=CUDA)
        for each, work in enumerate(works):
            assert work is not None
            work.wait()
            (result,) = work.result()
            good.append(bool((result == size * (size - 1) / 2 + size * each).all()))
            works[each] = None
        tensor = torch.full((count,), 1.0, device=CUDA)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        good.append(bool((doubled.wait() == 2 * size).all()))
    return good


def strided(rank: int, size: int) -> list[bool]:
    good = []
    for side in (10, 1000):
        base = torch.zeros(side, side, device=CUDA)
        columns = base.t()[1:4]
        columns.fill_(rank + 1.0)
        dist.all_reduce(columns)
        good.append(bool((base[:, 1:4] == size * (size + 1) / 2).all()))
        good.append(not base[:, 4:].any().item())
        # Addresses that nothing is aligned to but elements.
        odd = torch.full((side * side * 4 + 1,), rank, dtype=torch.uint8, device=CUDA)[1:]
        dist.all_reduce(odd)
        good.append(bool((odd == size * (size - 1) // 2).all()))
    dist.all_reduce(torch.empty(0, device=CUDA))
    return good


def _batch(rank: int) -> torch.Tensor:
    return torch.randn(16, 64, generator=torch.Generator().manual_seed(rank)).to(CUDA)


def ddp(rank: int, size: int) -> list[list[float]]:
    """Losses of a model on the device, and on the host."""
    found = []
    for device in (CUDA, torch.device("cpu")):
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024),
            torch.nn.ReLU(), torch.nn.Linear(1024, 8),
        ).to(device)  # fmt: skip
        shared = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
        found.append(_losses(shared, _batch(rank).to(device), 4))
    return found


def _losses(model: torch.nn.Module, batch: torch.Tensor, steps: int) -> list[float]:
    """Of each step, the mean of all ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses: list[float] = []
    for _ in range(steps):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, OP.AVG)
        losses.append(float(mean.item()))
    return losses


def fully_shard(rank: int, size: int) -> list[list[float]]:
    """Losses with FSDP2 on the device, and of one process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard as shard

    found = []
    for shared in (True, False):
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)
        ).to(CUDA)
        if shared:
            mesh = init_device_mesh("cuda", (size,))
            for layer in model:
                shard(layer, mesh=mesh)
            shard(model, mesh=mesh)
        every = torch.stack([_batch(each) for each in range(size)])
        found.append(_losses(model, every[rank] if shared else every.flatten(0, 1), 3))
    return found


def messages(rank: int, size: int) -> list[bool]:
    good = []
    for count in (3, 1 << 20):
        tensor = torch.full((count,), float(rank), device=CUDA)
        if rank == 0:
            dist.send(tensor, 1)
            back = torch.empty(count, device=CUDA)
            dist.recv(back, 1)
            good.append(bool((back == 1).all()))
        elif rank == 1:
            other = torch.empty(count, device=CUDA)
            dist.recv(other, 0)
            dist.send(tensor, 0)
            good.append(bool((other == 0).all()))
        peer = rank ^ 1
        taken = torch.empty(count, device=CUDA)
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, taken, peer)]
        ):
            work.wait()
        good.append(bool((taken == (0 if rank == 1 else 1)).all()) if rank < 2 else True)
    return good


def objects(rank: int, size: int) -> list[Any]:
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    both = dist.new_group(list(range(size)))
    tensor = torch.ones(5, device=CUDA)
    dist.all_reduce(tensor, group=both)
    host = torch.ones(5)
    dist.all_reduce(host)
    return [found, tensor.tolist(), host.tolist()]


def scaled(rank: int, size: int, count: int) -> list[str]:
    """Sums in which each rank has a factor of its own, of each type that has them."""
    wrong: list[str] = []
    premul = vars(dist)["_make_nccl_premul_sum"](1 / (rank + 2))
    for dtype in (*FLOATS, torch.float8_e4m3fn, torch.float8_e5m2):
        found: list[list[torch.Tensor]] = []
        for device in (torch.device("cpu"), CUDA):
            mine = values(rank, count, dtype).to(device)
            given = values(rank, count * size, dtype).to(device)
            share = torch.zeros(count, dtype=dtype, device=device)
            dist.all_reduce(mine, premul)
            dist.reduce_scatter_tensor(share, given, premul)
            found.append([mine.cpu(), share.cpu()])
        for name, on_host, on_device in zip(("all_reduce", "reduce_scatter"), *found, strict=True):
            if not torch.equal(on_host.view(torch.uint8), on_device.view(torch.uint8)):
                wrong.append(f"{name} of {dtype}")
    return wrong


def uneven(rank: int, size: int, count: int) -> list[str]:
    """Lists of tensors of several sizes, of which rank 0's has one element."""
    wrong: list[str] = []
    counts = [1 + each * count for each in range(size)]
    found: list[list[torch.Tensor]] = []
    for device in (torch.device("cpu"), CUDA):
        out = [torch.zeros(each, device=device) for each in counts]
        dist.all_gather(out, values(rank, counts[rank], torch.float32).to(device))
        share = torch.zeros(counts[rank], device=device)
        given = [values(rank + 7 * i, each, torch.float32) for i, each in enumerate(counts)]
        dist.reduce_scatter(share, [each.to(device) for each in given])
        found.append([*(each.cpu() for each in out), share.cpu()])
    for i, (on_host, on_device) in enumerate(zip(*found, strict=True)):
        if not torch.equal(on_host, on_device):
            wrong.append("reduce_scatter" if i == size else f"all_gather from rank {i}")
    return wrong


def uneven_exchange(rank: int, size: int) -> bool:
    gives = [1 + rank + each for each in range(size)]
    takes = [1 + rank + each for each in range(size)]
    out = torch.empty(sum(takes), 300_000, device=CUDA)
    given = torch.full((sum(gives), 300_000), float(rank), device=CUDA)
    dist.all_to_all_single(out, given, takes, gives)
    wanted = torch.cat([torch.full((takes[each],), float(each)) for each in range(size)])
    return bool(torch.equal(out[:, 7].cpu(), wanted))


def disagree(rank: int, size: int, how: str) -> str:
    count, device, dtype = 1 << 20, CUDA, torch.float32
    if rank == 1 and how == "count":
        count -= 1
    if rank == 1 and how == "small":
        count = 4
    if rank == 1 and how == "device":
        device = torch.device("cpu")
    if rank == 1 and how == "dtype":
        dtype = torch.int32
    tensor = torch.ones(count, dtype=dtype, device=device)
    return message_of(lambda: dist.all_reduce(tensor))


def no_memory(rank: int, size: int) -> list[str]:
    """A copy of the tensor is needed, for which there is no room on one rank."""
    tensor = torch.ones(200 << 18, 2, device=CUDA).t()[0]
    if rank == 1:
        torch.cuda.set_per_process_memory_fraction(0.0001)
    said = message_of(lambda: dist.all_reduce(tensor))
    torch.cuda.set_per_process_memory_fraction(1.0)
    return [said]


def lose(rank: int, size: int, count: int) -> tuple[float, str]:
    """The last rank is killed in the middle: how long the others took to hear of it, in seconds."""
    tensor = torch.ones(count, device=CUDA)
    dist.all_reduce(tensor)
    if rank == size - 1:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        os.kill(os.getpid(), signal.SIGKILL)

    def until_it_fails() -> None:
        for _ in range(10_000):
            dist.all_reduce(tensor)

    begun = time.monotonic()
    said = message_of(until_it_fails)
    took = time.monotonic() - begun
    # Nothing of this rank's is broken.
    return took, said if bool((tensor * 0 == 0).any()) else "the device is broken"


def stuck(rank: int, size: int) -> tuple[float, str]:
    """One rank's stream does not get on within the timeout of the operation."""
    tensor = torch.ones(1 << 20, device=CUDA)
    dist.all_reduce(tensor)
    if rank == 1:
        torch.cuda._sleep(6_000_000_000)
    begun = time.monotonic()
    group: Any = dist.new_group(list(range(size)), timeout=timedelta(seconds=1))
    said = message_of(lambda: dist.all_reduce(tensor, group=group))
    took = time.monotonic() - begun
    torch.cuda.synchronize()
    return took, said


def went(rank: int, size: int) -> list[str]:
    """Small and large, and which ways they went."""
    for count in (10, 4 << 20):
        tensor = torch.ones(count, device=CUDA)
        dist.all_reduce(tensor)
        assert bool((tensor == size).all())
    return ways()
