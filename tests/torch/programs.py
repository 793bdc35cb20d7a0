# SPDX-License-Identifier: Apache-2.0
"""What the ranks run. Each returns what can be sent: no tensors."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import torch.distributed as dist

import torch
from tensorwire import _core


def message_of(call: Callable[[], Any]) -> str:
    """Of what it raises."""
    try:
        call()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def moves(rank: int, size: int) -> tuple[list[str], list[str]]:
    """Each operation, small and through the pipeline of chunks; the expected in plain Python. Also
    which ways all-reduces went."""
    wrong: list[str] = []
    before = set(_core.group_statistics())

    def check(name: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
        if not torch.equal(found, wanted):
            wrong.append(f"{name}: {found.flatten()[:4]} is not {wanted.flatten()[:4]}")

    for count in (1, 5, 300_000):
        mine = torch.arange(count, dtype=torch.float32) + rank * 1000
        every = [torch.arange(count, dtype=torch.float32) + each * 1000 for each in range(size)]
        total = torch.stack(every).sum(0)

        tensor = mine.clone()
        dist.all_reduce(tensor)
        check("all_reduce", tensor, total)
        tensor = mine.clone()
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        check("average", tensor, total / size)
        tensor = mine.clone()
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        check("asynchronous", tensor, total)
        check("future", work.get_future().value()[0], total)
        tensor = mine.clone()
        dist.broadcast(tensor, 1)
        check("broadcast", tensor, every[1])
        tensor = mine.clone()
        dist.reduce(tensor, 1)
        if rank == 1:
            check("reduce", tensor, total)
        out = [torch.empty(count) for _ in range(size)]
        dist.all_gather(out, mine)
        check("all_gather", torch.stack(out), torch.stack(every))
        flat = torch.empty(size * count)
        dist.all_gather_into_tensor(flat, mine)
        check("all_gather_into_tensor", flat, torch.cat(every))
        flat = torch.empty(size * count)
        flat[rank * count : (rank + 1) * count] = mine
        dist.all_gather_into_tensor(flat, flat[rank * count : (rank + 1) * count])
        check("all_gather_into_tensor in place", flat, torch.cat(every))
        gathered = [torch.empty(count) for _ in range(size)] if rank == 0 else None
        dist.gather(mine, gathered, 0)
        if gathered is not None:
            check("gather", torch.stack(gathered), torch.stack(every))
        share = torch.empty(count)
        dist.scatter(share, every if rank == 0 else None, 0)
        check("scatter", share, every[rank])
        shares = [mine + each for each in range(size)]
        wanted = total + rank * size
        dist.reduce_scatter(share, shares)
        check("reduce_scatter", share, wanted)
        dist.reduce_scatter_tensor(share, torch.cat(shares))
        check("reduce_scatter_tensor", share, wanted)
        whole = torch.cat(shares)
        dist.reduce_scatter_tensor(whole[rank * count : (rank + 1) * count], whole)
        check("reduce_scatter_tensor in place", whole[rank * count : (rank + 1) * count], wanted)
        dist.all_to_all(out, shares)
        check("all_to_all", torch.stack(out), torch.stack([each + rank for each in every]))
        dist.all_to_all_single(flat, torch.cat(shares))
        check("all_to_all_single", flat, torch.cat([each + rank for each in every]))
    # Rank 0 gives 1 row to itself and 2 to rank 1; rank 1 gives 3 and 4.
    gives = [1, 2] if rank == 0 else [3, 4]
    takes = [1, 3] if rank == 0 else [2, 4]
    rows = torch.empty(sum(takes), 3)
    dist.all_to_all_single(rows, torch.full((sum(gives), 3), float(rank)), takes, gives)
    check("uneven", rows[:, 0], torch.tensor([0.0] * takes[0] + [1.0] * takes[1]))
    dist.barrier()
    # dist.monitored_barrier() asks for gloo by name.
    group: Any = dist.group.WORLD
    group.monitored_barrier()
    counts = set(_core.group_statistics()) - before
    return wrong, sorted(way for operation, way, _, _ in counts if operation == "all_reduce")


def parts_of_one(rank: int, size: int) -> list[str]:
    """Lists of tensors that are the parts of one: they are read and written where they lie, unless
    what is written is read, too."""
    wrong: list[str] = []

    def check(name: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
        if not torch.equal(found, wanted):
            wrong.append(f"{name}, {found.numel()}: {found.flatten()[:4]}")

    for count in (3, 300_000):
        every = torch.arange(size * count, dtype=torch.float32).view(size, count)
        mine, theirs = every[rank].clone(), (rank + 1) % size

        for place in (None, rank, theirs):  # apart, in its place, in another one's
            parts = torch.zeros(size, count)
            given = mine if place is None else parts[place].copy_(mine)
            dist.all_gather([*parts], given)
            check(f"all_gather {place}", parts, every)
            parts = torch.zeros(size, count)
            given = mine if place is None else parts[place].copy_(mine)
            dist.gather(given, [*parts] if rank == 0 else None, 0)
            if rank == 0:
                check(f"gather {place}", parts, every)
            parts = every.clone()
            share = torch.empty(count) if place is None else parts[place]
            dist.scatter(share, [*parts] if rank == 0 else None, 0)
            check(f"scatter {place}", share, every[rank])
            parts = every.clone()
            share = torch.empty(count) if place is None else parts[place]
            dist.reduce_scatter(share, [*parts])
            check(f"reduce_scatter {place}", share, size * every[rank])
        gives = every + rank * size * count
        wanted = torch.stack([mine + each * size * count for each in range(size)])
        takes = torch.empty(size, count)
        dist.all_to_all([*takes], [*gives])
        check("all_to_all", takes, wanted)
        takes = gives.clone()
        dist.all_to_all([*takes], [*takes])
        check("all_to_all in place", takes, wanted)
    return wrong


def kinds(rank: int, size: int) -> list[str]:
    """Types, reductions, strides."""
    wrong: list[str] = []
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
        *(torch.complex64, torch.complex128),
    ):
        tensor = torch.tensor([1, 2, 3]).to(dtype) * (rank + 1)
        dist.all_reduce(tensor)
        if not torch.equal(tensor, torch.tensor([3, 6, 9]).to(dtype)):
            wrong.append(f"{dtype}: {tensor}")
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64):
        tensor = torch.tensor([1.0, 2.0]).to(dtype)
        dist.all_reduce(tensor)
        if tensor.to(torch.float32).tolist() != [2.0, 4.0]:
            wrong.append(f"{dtype}: {tensor}")
    tensor = torch.tensor([1.0, 2.0])
    dist.all_reduce(tensor, vars(dist)["_make_nccl_premul_sum"](0.5 + rank))
    if tensor.tolist() != [2.0, 4.0]:
        wrong.append(f"PREMUL_SUM: {tensor}")
    # By a tensor of one number, and in halves: of each rank's own.
    halves = torch.tensor([3.0, 5.0]).half()
    dist.all_reduce(halves, vars(dist)["_make_nccl_premul_sum"](torch.tensor([0.5 + rank])))
    if halves.tolist() != [6.0, 10.0]:
        wrong.append(f"PREMUL_SUM of halves: {halves}")
    share = torch.empty(1)
    dist.reduce_scatter_tensor(
        share, torch.tensor([2.0, 4.0]), vars(dist)["_make_nccl_premul_sum"](0.5)
    )
    if share.item() != 2.0 * (rank + 1):
        wrong.append(f"PREMUL_SUM of shares: {share}")
    first = torch.tensor([True, True, False, False])
    second = torch.tensor([True, False, True, False])
    for op, truth in (
        (dist.ReduceOp.SUM, first | second),
        (dist.ReduceOp.MAX, first | second),
        (dist.ReduceOp.PRODUCT, first & second),
        (dist.ReduceOp.MIN, first & second),
        (dist.ReduceOp.BAND, first & second),
        (dist.ReduceOp.BOR, first | second),
        (dist.ReduceOp.BXOR, first ^ second),
    ):
        tensor = (second if rank else first).clone()
        dist.all_reduce(tensor, op)
        if not torch.equal(tensor, truth):
            wrong.append(f"bool {op}: {tensor}")
    base = torch.zeros(4, 6)
    dist.all_reduce(base.t()[1:4].add_(rank + 1))
    if not torch.equal(base[:, 1:4], torch.full((4, 3), 3.0)) or base[:, 0].any():
        wrong.append(f"strided: {base}")
    with torch.inference_mode():
        gathered = [torch.empty(2) for _ in range(size)]
        work = dist.all_gather(gathered, torch.full((2,), rank + 1.0), async_op=True)
        assert work is not None
        work.wait()
    if [each.tolist() for each in gathered] != [[1.0, 1.0], [2.0, 2.0]]:
        wrong.append(f"inference mode: {gathered}")
    scalar = torch.tensor(1.0 + rank)
    dist.broadcast(scalar, 1)
    dist.all_reduce(torch.empty(0))
    if scalar.item() != 2.0:
        wrong.append(f"scalar: {scalar}")
    return wrong


def uneven(rank: int, size: int) -> list[Any]:
    """Lists whose tensors differ in size. Rank 0 has none."""
    every = [torch.arange(float(each * 1000)).view(-1, 2) + each for each in range(size)]
    out = [torch.empty_like(each) for each in every]
    dist.all_gather(out, every[rank])
    gathered = all(map(torch.equal, out, every))
    strided = torch.empty(2, len(every[rank])).t()
    dist.reduce_scatter(strided, [each + rank for each in every], dist.ReduceOp.AVG)
    scattered = torch.equal(strided, every[rank] + (size - 1) / 2)
    said = message_of(lambda: dist.all_gather(out, every[rank][:1] if rank else torch.empty(3)))
    return [gathered, scattered, said]


def coalesced(rank: int, size: int) -> list[str]:
    """Many tensors in one call, in the ways that PyTorch has for that."""
    wrong: list[str] = []
    manager: Any = vars(dist.distributed_c10d)["_coalescing_manager"]

    def check(name: str, found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
        if not all(map(torch.equal, found, wanted)):
            wrong.append(name)

    def mine() -> list[torch.Tensor]:
        return [torch.full((count,), rank + 1.0) for count in (4, 100_000)]

    every = [torch.full((count,), each + 1.0) for count in (4, 100_000) for each in range(size)]
    total = [torch.full((count,), size * (size + 1) / 2) for count in (4, 100_000)]
    cpu = torch.device("cpu")
    for how in product((None, cpu), (False, True)):
        device, async_op = how
        tensors = mine()
        with manager(device=device, async_ops=async_op) as work:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if async_op:
            work.wait()
        check(f"all_reduce {how}", tensors, total)
        outs = [torch.empty(len(each) * size) for each in mine()]
        with manager(device=device, async_ops=async_op) as work:
            for out, tensor in zip(outs, mine(), strict=True):
                dist.all_gather_into_tensor(out, tensor)
        if async_op:
            work.wait()
        check(f"all_gather {how}", [part for out in outs for part in out.chunk(size)], every)
        shares = mine()
        with manager(device=device, async_ops=async_op) as work:
            for share in shares:
                dist.reduce_scatter_tensor(share, share.repeat(size))
        if async_op:
            work.wait()
        check(f"reduce_scatter {how}", shares, total)
    # What has no form of its own for many: they are begun one by one, and waited for together.
    tensors, heard = mine(), torch.empty(1)
    with manager(device=cpu, async_ops=True) as work:
        for tensor in tensors:
            dist.broadcast(tensor, 1, async_op=True)
        dist.isend(torch.tensor([rank + 1.0]), 1 - rank)
        dist.irecv(heard, 1 - rank)
    work.wait()
    check("broadcast", [*tensors, heard], [*every[1::size], torch.tensor([2.0 - rank])])
    tensors = mine()
    dist.all_reduce_coalesced(tensors)
    check("all_reduce_coalesced", tensors, total)
    lists = [[torch.empty_like(each) for each in mine()] for _ in range(size)]
    dist.all_gather_coalesced(lists, mine())
    check("all_gather_coalesced", [each[i] for i in range(2) for each in lists], every)
    return wrong


def side_by_side(rank: int, size: int) -> tuple[list[str], list[int]]:
    """Small tensors of two types, some strided or empty, and a large one, in one call. Also how
    many operations of the group each call came to."""
    wrong: list[str] = []
    counts: list[int] = []
    manager: Any = vars(dist.distributed_c10d)["_coalescing_manager"]
    shapes = (1,), (3, 5), (0, 2), (7,), (20_000,)

    def of(each: int, rows: int = 1) -> list[torch.Tensor]:
        """What a rank has; with ``rows``, in so many copies that count up."""
        made = [
            torch.cat([torch.full(shape, 1.0 + i + 10 * each + row) for row in range(rows)])
            for i, shape in enumerate(shapes)
        ]
        made[1] = made[1].t().contiguous().t()
        return [*made, *(tensor.to(torch.int32) for tensor in made[:4])]

    def operations() -> int:
        return sum(count for _, _, count, _ in _core.group_statistics())

    def check(name: str, before: int, found: list[torch.Tensor], want: list[torch.Tensor]) -> None:
        counts.append(operations() - before)
        wrong.extend(
            f"{name} {place}"
            for place, pair in enumerate(zip(found, want, strict=True))
            if not torch.equal(*pair)
        )

    every = [of(each) for each in range(size)]
    total = [sum(tensors[1:], tensors[0]) for tensors in zip(*every, strict=True)]
    found, before = of(rank), operations()
    with manager():
        for tensor in found:
            dist.all_reduce(tensor)
    check("all_reduce", before, found, total)
    found, before = of(rank, size), operations()
    with manager():
        for out, tensor in zip(found, of(rank), strict=True):
            dist.all_gather_into_tensor(out, tensor)
    gathered = [torch.cat(tensors) for tensors in zip(*every, strict=True)]
    check("all_gather", before, found, gathered)
    found, before = of(rank), operations()
    with manager():
        for out, tensor in zip(found, of(rank, size), strict=True):
            dist.reduce_scatter_tensor(out, tensor)
    check("reduce_scatter", before, found, [tensor + size * rank for tensor in total])
    # PyTorch wants one type there.
    lists, before = [of(rank)[:5] for _ in range(size)], operations()
    dist.all_gather_coalesced(lists, of(rank)[:5])
    wanted = [tensor for each in every for tensor in each[:5]]
    check("lists", before, [tensor for each in lists for tensor in each], wanted)
    return wrong, counts


def other_sizes(rank: int, size: int) -> list[str]:
    """Ranks whose small tensors differ in size, and have the same sum of sizes."""
    manager: Any = vars(dist.distributed_c10d)["_coalescing_manager"]

    def call() -> None:
        with manager():
            for count in (3, 5) if rank else (5, 3):
                dist.all_reduce(torch.ones(count))

    return [message_of(call)]


def messages(rank: int, size: int) -> list[float]:
    """Both ranks ask before they give, and tags do not come in each other's way."""
    other = 1 - rank
    big = torch.full((400_000,), float(rank))
    into = torch.empty_like(big)
    works = [dist.irecv(into, other, tag=3), dist.isend(big, other, tag=3)]
    for work in works:
        assert work is not None
        work.wait()
    small = torch.empty(1)
    if rank == 0:
        dist.send(torch.tensor([7.0]), 1, tag=5)
        dist.send(torch.tensor([8.0]), 1, tag=4)
    else:
        dist.recv(small, 0, tag=4)
        assert small.item() == 8.0
        dist.recv(small, 0, tag=5)
        assert small.item() == 7.0
    operations = [
        dist.P2POp(dist.isend, torch.tensor([rank + 10.0]), other),
        dist.P2POp(dist.irecv, small, other),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    heard = small.item()
    sent = dist.isend(torch.tensor([rank + 20.0]), other, tag=6)
    assert sent is not None
    source = dist.recv(small, tag=6)
    sent.wait()
    assert small.item() == source + 20.0
    return [into.min().item(), into.max().item(), heard, source]


def a_tag_for_each_step(rank: int, size: int) -> int:
    """The threads that are left of messages that have ended, but for one that comes once more."""
    one = torch.ones(1)
    for tag in (*range(100, 150), 100):
        (dist.recv if rank else dist.send)(one, 1 - rank, tag=tag)
    end = time.monotonic() + 20
    while (left := _own_threads()) and time.monotonic() < end:
        time.sleep(0.01)
    (dist.recv if rank else dist.send)(one, 1 - rank, tag=100)
    return left


def _own_threads() -> int:
    left = 0
    for each in Path("/proc/self/task").iterdir():
        # A thread that ends meanwhile takes its folder along.
        with suppress(FileNotFoundError, ProcessLookupError):
            left += (each / "comm").read_text().startswith("tw-torch")
    return left


def refusals(rank: int, size: int) -> list[str]:
    """Nothing has been sent: the group goes on."""
    ones = torch.ones(2)
    premultiplied: Any = vars(dist)["_make_nccl_premul_sum"]
    sparse = torch.eye(2).to_sparse()
    found = [
        message_of(lambda: dist.all_reduce(sparse)),
        message_of(lambda: dist.all_reduce(ones.int(), premultiplied(2.0))),
        message_of(lambda: dist.recv(ones, rank)),
        message_of(lambda: dist.all_reduce(ones > 0, dist.ReduceOp.AVG)),
        message_of(lambda: dist.all_reduce(ones, dist.ReduceOp.BXOR)),
        message_of(lambda: dist.all_gather_into_tensor(torch.empty(3), ones)),
        message_of(lambda: dist.all_reduce(ones.to(torch.float8_e4m3fnuz))),
    ]
    group: Any = dist.group.WORLD
    backend = group._get_backend(torch.device("cuda"))
    meta = torch.ones(2, device="meta")
    found.append(message_of(lambda: backend.allreduce([meta], dist.AllreduceOptions())))
    dist.all_reduce(ones)
    assert ones.tolist() == [2.0, 2.0]
    return found


def groups_and_objects(rank: int, size: int) -> Any:
    both = dist.new_group([0, 1])
    alone = [dist.new_group([each]) for each in range(size)][rank]
    tensor = torch.tensor([float(rank + 1)])
    dist.all_reduce(tensor, group=both)
    dist.all_reduce(tensor, group=alone)
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    shared = [f"from {rank}"]
    dist.broadcast_object_list(shared, 0)
    return tensor.item(), found, shared, dist.get_backend(both)


def many_at_once(rank: int, size: int) -> bool:
    """Operations that are begun and not waited for run in their order."""
    tensors = [torch.full((1000 * (i % 7) + 1,), float(rank + i)) for i in range(60)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    last = torch.ones(1)
    dist.all_reduce(last)
    for work in works:
        work.wait()
    good = all(bool((t == 2 * i + 1).all()) for i, t in enumerate(tensors))
    return good and last.item() == 2.0


def callbacks(rank: int, size: int) -> list[float]:
    """Operations within callbacks, which wait for them, and others that were begun before those."""
    mine, theirs = torch.tensor([rank + 1.0]), torch.tensor([10.0])

    def again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        (total,) = future.value()
        dist.all_reduce(total, async_op=True).get_future().wait()
        dist.all_reduce(total)
        return total

    large = torch.ones(1 << 20)
    dist.all_reduce(large, async_op=True)  # callbacks are there before their operation ends
    chained = dist.all_reduce(mine, async_op=True).get_future().then(again)
    later = dist.all_reduce(theirs, async_op=True)
    later.wait()
    found: torch.Tensor = chained.wait()
    return [found.item(), theirs.item(), large[-1].item()]


def freed(rank: int, size: int) -> list[Any]:
    """Tensors of rank 0 that nobody but operations under way holds, and others where those would
    lie if they were free. Rank 1 returns what comes of them; rank 0, whether the others stay."""
    store = vars(dist.distributed_c10d)["_get_default_store"]()
    found: list[Any] = []
    for count in (1, 300_000):
        gathered = [torch.empty(count) for _ in range(size)]
        total, sent, message = torch.ones(count), torch.empty(count), torch.empty(count)
        if rank == 0:
            total = total * 7
            sent, message = torch.full((count,), 5.0), torch.full((count,), 3.0)
        else:
            store.get(f"dropped {count}")  # so that rank 0's are under way until then
        works = [
            dist.all_gather(gathered, torch.full((count,), rank + 1.0), async_op=True),
            dist.all_reduce(total, async_op=True),
            dist.broadcast(sent, 0, async_op=True),
            dist.isend(message, 1) if rank == 0 else dist.irecv(message, 0),
        ]
        others = []
        if rank == 0:
            del gathered, total, sent, message
            gc.collect()
            others = [torch.full((count,), -1.0) for _ in range(8)]
            store.set(f"dropped {count}", "")
        for work in works:
            work.wait()
        if rank == 0:
            found.append(all(bool((each == -1).all()) for each in others))
        else:
            tensors = (*gathered, total, sent, message)
            found.append([sorted(set(each.tolist())) for each in tensors])
    return found


def train(rank: int, size: int) -> tuple[list[float], str]:
    """A few steps of a model whose gradients come in several buckets."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)
    )
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    torch.manual_seed(100 + rank)
    for _ in range(4):
        loss = parallel(torch.randn(8, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return flat[:200].tolist(), flat.numpy().tobytes().hex()


def shard(rank: int, size: int) -> tuple[list[float], list[float]]:
    """A model whose weights are shared out, and the same one whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def make() -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    torch.manual_seed(2)
    batches = torch.randn(size, 4, 16)
    losses: list[list[float]] = []
    for model, batch in ((make(), batches[rank]), (make(), batches.flatten(0, 1))):
        if not losses:
            fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.append([])
        for _ in range(3):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            value = loss.detach().clone()
            if len(losses) == 1:
                dist.all_reduce(value, dist.ReduceOp.AVG)
            losses[-1].append(value.item())
    return losses[0], losses[1]


def lose(rank: int, size: int) -> str:
    """Rank 1 is killed while rank 0 waits for it."""
    import os
    import signal

    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    first = message_of(lambda: dist.all_reduce(torch.ones(4)))
    second = message_of(lambda: dist.barrier())
    return f"{first}\n{second}"


def give_up(rank: int, size: int) -> str:
    """Rank 1 does not come; rank 0 waits as long as the group's timeout says."""
    from datetime import timedelta

    group = dist.new_group([0, 1], timeout=timedelta(seconds=0.3))
    if rank == 1:
        dist.barrier()
        return ""
    found = message_of(lambda: dist.all_reduce(torch.ones(4), group=group))
    dist.barrier()
    return found


def bits(rank: int, size: int, tables: list[tuple[str, str]]) -> list[str]:
    """The bits of sums of floats that depend on their order, in a group of each of the settings
    TENSORWIRE_DETERMINISTIC and TENSORWIRE_TUNING, over TCP."""
    import os

    found = []
    for deterministic, tuning in tables:
        os.environ.update(TENSORWIRE_DETERMINISTIC=deterministic, TENSORWIRE_TUNING=tuning)
        tensor = torch.rand(10_000, generator=torch.Generator().manual_seed(rank))
        dist.all_reduce(tensor, group=dist.new_group(list(range(size))))
        found.append(hashlib.sha256(tensor.numpy().tobytes()).hexdigest())
    del os.environ["TENSORWIRE_DETERMINISTIC"], os.environ["TENSORWIRE_TUNING"]
    return found


def missed(rank: int, size: int) -> tuple[list[str], float]:
    """What is said of barriers to which odd ranks come when the others have given up, once with
    each flag, and of one that rank 0 misses; then all come to one, and reduce something."""
    from datetime import timedelta

    from tensorwire.torch import monitored_barrier

    said = []

    def come(seconds: float, wait_all_ranks: bool = False) -> None:
        limit = timedelta(seconds=seconds)
        said.append(message_of(lambda: monitored_barrier(None, limit, wait_all_ranks)))

    monitored_barrier()
    for wait_all_ranks in (False, True):
        dist.barrier()
        if rank % 2 == 0:
            come(3, wait_all_ranks)
        dist.barrier()
        if rank % 2 == 1:
            come(0.05)
    dist.barrier()
    if rank != 0:
        come(0.05)
    dist.barrier()
    if rank == 0:
        come(3)
    monitored_barrier(wait_all_ranks=True)
    some = dist.new_group([0, 2])
    monitored_barrier(some)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return said, tensor.item()


def miss_for_ever(rank: int, size: int) -> str:
    """The last rank dies."""
    import os

    from tensorwire.torch import monitored_barrier

    monitored_barrier()
    if rank == size - 1:
        os._exit(1)
    return message_of(lambda: monitored_barrier(wait_all_ranks=True))


def interrupt(rank: int, size: int, async_op: bool) -> str:
    """Ctrl-C while rank 0 waits for rank 1, which does not come. That another thread can tell of it
    shows that the wait does not hold the GIL."""
    import _thread
    import signal
    import threading

    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["over"])
        return ""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.1, _thread.interrupt_main)
    timer.start()
    try:
        work = dist.all_reduce(torch.ones(4), async_op=async_op)
        if work is not None:
            work.wait()
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        store.set("over", "")
    return "not interrupted"


def abort(rank: int, size: int) -> list[str]:
    """Rank 0 gives up while an operation is under way: that ends, for both."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["over"])
        return [message_of(lambda: dist.barrier())]
    group: Any = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    work = dist.all_reduce(torch.ones(4), async_op=True)
    assert work is not None
    backend.abort()
    assert work.is_completed()
    store.set("over", "")
    return [message_of(work.wait), message_of(lambda: dist.all_reduce(torch.ones(4)))]
