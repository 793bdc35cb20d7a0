# SPDX-License-Identifier: Apache-2.0
"""Ranks of groups under torment: what they do, each result checked, and what they say of it.

A rank joins one group after the other, so that a process can lose many of them. Its orders, and
the seed from which all ranks of a group draw the same operations, come by the conversation.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from tests.torture.processes import Conversation, descriptors, private_mib

import tensorwire
from tensorwire.collective import Group, GroupError, join

IDLE_SECONDS: Final = 3600.0
JOIN_SECONDS: Final = 60.0
MOST_ELEMENTS: Final = 21
"""Of an array, as a power of two: 8 MiB of float32, more than what is read in place."""


class WrongResultError(Exception):
    """The worst that can happen."""


def _numbers(rank: int, count: int) -> Any:
    """Small integers, whose sums are exact in any order."""
    return (np.arange(count, dtype=np.float32) % 251) + rank


def _rows(group: Group, count: int) -> Any:
    return [_numbers(rank, count) for rank in range(group.size)]


def _check(found: Any, expected: Any, what: str) -> None:
    if not np.array_equal(found, expected):
        raise WrongResultError(f"{what} of {np.size(expected)} elements has a wrong result")


def _sum(group: Group, count: int) -> Any:
    return sum(_rows(group, count))


def _all_reduce(group: Group, count: int, root: int) -> None:
    _check(group.all_reduce(_numbers(group.rank, count)), _sum(group, count), "all_reduce")


def _later(group: Group, count: int, root: int) -> None:
    works = [group.all_reduce(_numbers(group.rank, count), async_op=True) for _ in range(3)]
    for work in works:
        _check(work.wait(), _sum(group, count), "asynchronous all_reduce")


def _reduce(group: Group, count: int, root: int) -> None:
    found = group.reduce(_numbers(group.rank, count), root=root)
    if group.rank == root:
        _check(found, _sum(group, count), "reduce")


def _broadcast(group: Group, count: int, root: int) -> None:
    found = group.broadcast(_numbers(group.rank, count), root)
    _check(found, _numbers(root, count), "broadcast")


def _all_gather(group: Group, count: int, root: int) -> None:
    found = group.all_gather(_numbers(group.rank, count))
    _check(found, _rows(group, count), "all_gather")


def _gather(group: Group, count: int, root: int) -> None:
    found = group.gather(_numbers(group.rank, count), root=root)
    if group.rank == root:
        _check(found, _rows(group, count), "gather")


def _scatter(group: Group, count: int, root: int) -> None:
    rows = np.stack(_rows(group, count))
    given = rows if group.rank == root else None
    _check(
        group.scatter(np.empty(count, np.float32), given, root=root), rows[group.rank], "scatter"
    )


def _reduce_scatter(group: Group, count: int, root: int) -> None:
    whole = np.tile(_numbers(group.rank, count), (group.size, 1))
    _check(group.reduce_scatter(whole)[0], _sum(group, count), "reduce_scatter")


def _all_to_all(group: Group, count: int, root: int) -> None:
    found = group.all_to_all(np.tile(_numbers(group.rank, count), (group.size, 1)))
    _check(found, _rows(group, count), "all_to_all")


def _barrier(group: Group, count: int, root: int) -> None:
    group.barrier()


def _pass_on(group: Group, count: int, root: int) -> None:
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    group.send(_numbers(group.rank, count), after, tag=7)
    found = group.receive(np.empty(count, np.float32), before, tag=7)
    _check(found, _numbers(before, count), "receive")


def _uneven(group: Group, count: int, root: int) -> None:
    """Shares of different sizes; that of the root is empty."""
    each = range(group.size)
    rows = [0 if rank == root else count // group.size + rank for rank in each]
    ends = np.cumsum(rows)
    own = slice(ends[group.rank] - rows[group.rank], ends[group.rank])
    whole = [_numbers(rank, sum(rows)) for rank in each]
    shares = [_numbers(rank, rows[rank]) for rank in each]
    found = group.all_gather(shares[group.rank], rows=rows)
    _check(found, np.concatenate(shares), "uneven all_gather")
    found = group.reduce_scatter(whole[group.rank], rows=rows)
    _check(found, sum(whole)[own], "uneven reduce_scatter")
    found = group.all_to_all(whole[group.rank], rows, [rows[group.rank]] * group.size)
    _check(found, np.concatenate([one[own] for one in whole]), "uneven all_to_all")


def _many(group: Group, count: int, root: int) -> None:
    """Several arrays at once, of sizes of which some travel side by side."""
    counts = [count, *(count >> 6, 3)]

    def arrays(rank: int) -> list[Any]:
        return [_numbers(rank, one) for one in counts]

    def check(found: list[Any], of: Callable[[int], Any], what: str) -> None:
        for one, size in zip(found, counts, strict=True):
            _check(one, of(size), f"{what} of several arrays")

    mine = arrays(group.rank)
    check(group.all_gather_many(mine), lambda size: _rows(group, size), "all_gather")
    tiles = [np.tile(one, (group.size, 1)) for one in mine]
    sums = [one[0] for one in group.reduce_scatter_many(tiles)]
    check(sums, lambda size: _sum(group, size), "reduce_scatter")
    group.all_reduce_many(mine)
    check(mine, lambda size: _sum(group, size), "all_reduce")
    mine = arrays(group.rank)
    group.broadcast_many(mine, root)
    check(mine, lambda size: _numbers(root, size), "broadcast")


def _whoever_is_first(group: Group, count: int, root: int) -> None:
    if group.rank != root:
        group.send(_numbers(group.rank, count), root, tag=9)
    else:
        out = np.empty(count, np.float32)
        left = set(range(group.size)) - {root}
        while left:
            rank = group.receive_any(out, tag=9)
            left.remove(rank)
            _check(out, _numbers(rank, count), "receive_any")
    group.barrier()  # nobody sends what is for the next one


def _adasum(group: Group, count: int, root: int) -> None:
    """Arrays that have nothing in common, which are added."""
    place = np.arange(count) % group.size
    whole = _numbers(0, count)
    found = group.all_reduce(np.where(place == group.rank, whole, np.float32(0)), "adasum")
    _check(found, whole, "adasum")


def _tree(group: Group, count: int, root: int) -> None:
    tree = {"weight": _numbers(group.rank, count), "more": [_numbers(group.rank, 5), None]}
    found = group.all_reduce(tree)
    _check(found["weight"], _sum(group, count), "all_reduce of a tree")
    _check(found["more"][0], _sum(group, 5), "all_reduce of a tree")
    found = group.broadcast({"weight": _numbers(group.rank, count)}, root)
    _check(found["weight"], _numbers(root, count), "broadcast of a tree")


def _split(group: Group, count: int, root: int) -> None:
    part = group.split(int(group.rank == root), key=-group.rank)
    assert part is not None
    try:
        ranks = [root] if group.rank == root else [r for r in range(group.size) if r != root]
        found = part.all_reduce(_numbers(group.rank, count))
        _check(found, sum(_numbers(rank, count) for rank in ranks), "all_reduce of a part")
    finally:
        part.close()


OPERATIONS: Final[tuple[Callable[[Group, int, int], None], ...]] = (
    *(_all_reduce, _later, _reduce, _broadcast, _all_gather, _gather),
    *(_scatter, _reduce_scatter, _all_to_all, _barrier, _pass_on),
    *(_uneven, _many, _whoever_is_first, _adasum, _tree, _split),
)


def _any(group: Group, rng: random.Random, most: int = MOST_ELEMENTS) -> None:
    """The same on all ranks that draw from the same numbers."""
    operation = rng.choice(OPERATIONS)
    operation(group, int(2 ** rng.uniform(0, most)), rng.randrange(group.size))


class Limited:
    """A group whose operations have another time limit than to join it had. It knows when the last
    one of them was begun."""

    _OPERATIONS: Final = frozenset(
        {"all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter"}
        | {"all_to_all", "barrier", "send", "receive", "receive_any", "split"}
        | {"all_reduce_many", "broadcast_many", "all_gather_many", "reduce_scatter_many"}
    )

    def __init__(self, group: Group, seconds: float) -> None:
        self._group = group
        self._seconds = seconds
        self.began = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._group, name)
        if name not in self._OPERATIONS:
            return found

        def begin(*arguments: Any, **more: Any) -> Any:
            self.began = time.monotonic()
            return found(*arguments, **{"timeout": self._seconds, **more})

        return begin


# -------------------------------------------------------------------- what a rank does in its group


def work(group: Group, order: dict[str, Any], joined: Callable[[], None]) -> None:
    """Any operations, until one fails."""
    rng = random.Random(order["seed"])
    joined()
    while True:
        _any(group, rng)


def differ(group: Group, order: dict[str, Any], joined: Callable[[], None]) -> None:
    """Calls the same as the others, a few times; then one of them calls something else."""
    rng = random.Random(order["seed"])
    joined()
    for _ in range(rng.randrange(3)):
        _any(group, rng, 16)
    kind, count, odd = rng.randrange(4), int(2 ** rng.uniform(1, 18)), group.rank == order["odd"]
    if kind == 0 and odd:
        group.barrier()
    else:
        dtype = np.float64 if kind == 1 and odd else np.float32
        array = np.ones(count + (kind == 2 and odd), dtype)
        calls: list[Callable[[], object]] = [
            lambda: group.all_reduce(array, "max" if kind == 3 and odd else "sum"),
            lambda: group.reduce(array, "max" if kind == 3 and odd else "sum"),
            lambda: group.all_gather(array) if kind != 3 or not odd else group.all_reduce(array),
            lambda: group.broadcast(array) if kind != 3 or not odd else group.all_reduce(array),
        ]
        calls[rng.randrange(len(calls))]()
    group.barrier()


def leave(group: Group, order: dict[str, Any], joined: Callable[[], None]) -> None:
    """One rank leaves after some operations, in one of the ways in which a process can."""
    rng = random.Random(order["seed"])
    joined()
    for _ in range(rng.randrange(4)):
        _any(group, rng, 16)
    way = rng.randrange(4)
    if group.rank == order["odd"]:
        if way == 0:
            os._exit(0)
        if way == 1:
            group.close()
            sys.stderr.flush()
            os._exit(0)
        if way == 2:
            group.abort("enough")
        return
    while True:
        _any(group, rng, 16)


def fork(group: Group, order: dict[str, Any], joined: Callable[[], None]) -> None:
    """Each rank forks a child while another thread is in the middle of operations; the child may
    not use the group, and the parent's results stay right. Then all of them leave."""
    rng, over = random.Random(order["seed"]), threading.Event()
    faults: list[BaseException] = []

    def operate() -> None:
        try:
            for _ in range(8):
                _any(group, rng, 18)
        except BaseException as error:
            faults.append(error)
        over.set()

    operating = threading.Thread(target=operate)
    operating.start()
    joined()
    while not over.is_set():
        pid = os.fork()
        if pid == 0:
            try:
                group.barrier()
            except GroupError as error:
                os._exit(0 if "fork" in str(error) else 2)
            os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            raise WrongResultError(f"a forked child of a rank ended with {status}")
    operating.join()
    if faults:
        raise faults[0]


def cross(group: Group, order: dict[str, Any], joined: Callable[[], None]) -> None:
    """Two groups of the same ranks at once. Begun in different orders, operations of both end
    right; waited for in different orders, they end at their time limits."""
    other = group.split(0)
    assert other is not None
    both, rng = [group, other], random.Random(order["seed"])
    try:
        for _ in range(4):
            mine = both if group.rank == order["odd"] else both[::-1]
            count = int(2 ** rng.uniform(0, 18))
            begun = [each.all_reduce(_numbers(each.rank, count), async_op=True) for each in mine]
            for one in begun:
                _check(one.wait(), _sum(group, count), "all_reduce of two groups at once")
        joined()
        for each in mine:
            each.all_reduce(_numbers(each.rank, 100_000), timeout=order["timeout"])
    finally:
        other.close()


JOBS: Final = {job.__name__: job for job in (work, differ, leave, fork, cross)}


# ------------------------------------------------------------------------------------- the process


def holdings() -> dict[str, float]:
    """Of this process outside of groups: memory (MiB), descriptors, mappings of memory that it
    shares, threads, and blocks of its arena."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "private": private_mib(os.getpid()),
        "descriptors": descriptors(os.getpid()),
        "mappings": sum("/memfd:" in line for line in maps),
        "threads": threading.active_count(),
        "blocks": tensorwire.arena_stats()["blocks"],
    }


def rank(talk: Conversation, _: Any) -> None:
    """One group for each order that it hears, and what became of it: when its last operation was
    begun and over, and when it had left the group. Times are of ``time.monotonic``, which all
    processes of a host share."""
    while True:
        order = talk.hear(IDLE_SECONDS)
        if order["do"] == "holdings":
            talk.say(holdings())
            continue
        told = False

        def joined() -> None:
            nonlocal told
            told = True
            talk.say("joined")

        error, text, began, over = "", "", 0.0, 0.0
        try:
            with join(order["folder"], order["rank"], order["size"], timeout=JOIN_SECONDS) as it:
                group = Limited(it, order["limit"])
                try:
                    JOBS[order["do"]](cast(Group, group), order, joined)
                finally:
                    began, over = group.began, time.monotonic()
        except Exception as caught:
            error, text = type(caught).__name__, str(caught)
        at = time.monotonic()
        if not told:
            talk.say(f"{error}: {text}")
        talk.say({"error": error, "text": text, "began": began, "over": over, "at": at})
