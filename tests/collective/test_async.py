# SPDX-License-Identifier: Apache-2.0
"""Operations and messages that run behind the caller's back."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import signal
import threading
from collections.abc import Callable
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.collective.ranks import results

from tensorwire.collective import Group, GroupError, Work
from tensorwire.collective.work import Line, Lines


def calls(group: Group) -> dict[str, Callable[..., Any]]:
    """Each of them, by two ranks."""
    rank, other = group.rank, 1 - group.rank
    ones = np.full(2, rank + 1.0)
    table: Any = np.arange(4.0).reshape(2, 2) + rank

    def receive_any(**how: Any) -> Any:
        group.send(ones, other, tag=1)
        return group.receive_any(np.empty(2), tag=1, **how)

    return {
        "all_reduce": lambda **how: group.all_reduce(ones.copy(), **how),
        "reduce": lambda **how: group.reduce(ones.copy(), root=1, **how),
        "broadcast": lambda **how: group.broadcast(ones.copy(), 1, **how),
        "all_gather": lambda **how: group.all_gather(ones, **how),
        "all_gather uneven": lambda **how: group.all_gather(table[rank:], rows=[2, 1], **how),
        "gather": lambda **how: group.gather(ones, root=1, **how),
        "scatter": lambda **how: group.scatter(np.empty(2), table, **how),
        "reduce_scatter": lambda **how: group.reduce_scatter(table, **how),
        "all_to_all": lambda **how: group.all_to_all(table, **how),
        "all_reduce_many": lambda **how: group.all_reduce_many([ones.copy(), table.copy()], **how),
        "broadcast_many": lambda **how: group.broadcast_many([ones.copy()], **how),
        "all_gather_many": lambda **how: group.all_gather_many([ones, table], **how),
        "reduce_scatter_many": lambda **how: group.reduce_scatter_many([table, ones], **how),
        "barrier": group.barrier,
        "send": lambda **how: group.send(ones, other, **how),
        "receive": lambda **how: group.receive(np.empty(2), other, **how),
        "receive_any": receive_any,
        # Of trees.
        "all_reduce tree": lambda **how: group.all_reduce([ones.copy(), table.copy()], **how),
        "all_gather tree": lambda **how: group.all_gather([ones, (table,)], **how),
        "gather tree": lambda **how: group.gather([ones, (table,)], root=1, **how),
        "scatter tree": lambda **how: group.scatter(
            [np.empty(2)], None if rank else [table], **how
        ),
        "reduce_scatter tree": lambda **how: group.reduce_scatter({"a": table}, **how),
        "all_to_all tree": lambda **how: group.all_to_all([table, ones], **how),
        "send tree": lambda **how: group.send([ones, table], other, **how),
        "receive tree": lambda **how: group.receive(
            [np.empty(2), (np.empty((2, 2)),)], other, **how
        ),
    }


def plain(result: Any) -> Any:
    if isinstance(result, dict):
        return {key: plain(each) for key, each in result.items()}
    if isinstance(result, list | tuple):
        return [plain(each) for each in result]
    return result.tolist() if isinstance(result, np.ndarray) else result


def begin_all(group: Group) -> None:
    every = calls(group)
    public = {
        name
        for name, method in inspect.getmembers(Group, inspect.isfunction)
        if name[0] != "_" and "async_op" in inspect.signature(method).parameters
    }
    assert {name.split()[0] for name in every} == public
    plainly = {name: plain(call()) for name, call in calls(group).items()}

    def begun() -> dict[str, Work[Any]]:
        works = {name: call(async_op=True) for name, call in calls(group).items()}
        assert all(type(work) is Work for work in works.values())
        return works

    works = begun()
    assert {name: plain(work.wait()) for name, work in works.items()} == plainly
    assert all(work.done() for work in works.values())

    async def step() -> dict[str, Any]:
        return {name: plain(await work) for name, work in begun().items()}

    assert asyncio.run(step()) == plainly


def begin_and_wait(group: Group) -> None:
    begun = [group.all_reduce(np.full(30_000, i + 1.0), async_op=True) for i in range(20)]
    # One that is not asynchronous comes behind those.
    assert (group.all_reduce(np.ones(3)) == 2).all()
    assert all(work.done() for work in begun)
    assert [work.wait()[0] for work in begun] == [2 * (i + 1) for i in range(20)]


def receive_first(group: Group) -> None:
    other = 1 - group.rank
    large = np.full(300_000, float(group.rank))
    # Of one tag in their order, and beside other tags and operations.
    late = group.receive(np.empty(1), other, tag=7, async_op=True)
    works = [group.receive(np.empty_like(large), other, async_op=True) for _ in range(3)]
    group.barrier()
    sent = [group.send(large + i, other, async_op=True) for i in range(2)]
    group.send(large + 2, other)
    assert [work.wait()[0] for work in works] == [other, other + 1, other + 2]
    assert [work.wait() for work in sent] == [None, None]
    assert not late.done()

    async def shortly() -> None:
        await asyncio.wait_for(late, 0.01)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(shortly())
    with pytest.raises(TimeoutError, match="has not ended"):
        late.wait(0.01)
    group.barrier()
    group.send(np.full(1, 5.0), other, tag=7)
    assert late.wait() == 5  # which had gone on
    with pytest.raises(TimeoutError, match="no message has come"):
        group.receive(np.empty(1), other, timeout=0.01, async_op=True).wait()
    with pytest.raises(ValueError, match="out is read-only"):
        group.receive(np.frombuffer(b"12345678"), other, async_op=True)
    with pytest.raises(ValueError, match="goes to another rank"):
        group.send(large, group.rank, async_op=True).wait()
    group.barrier()


def all_of_it(group: Group) -> None:
    begin_all(group)
    begin_and_wait(group)
    receive_first(group)
    # Nobody sends this: Ctrl-C ends a wait, and an abort what is waited for.
    work = group.receive(np.empty(1), 1 - group.rank, async_op=True)
    if group.rank == 0:
        timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT])
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come at once
            timer.start()
            work.wait()
        timer.join()
        assert not work.done()
        group.abort("the user had enough")
    with pytest.raises(GroupError, match=r"the user had enough|has left the group"):
        work.wait()  # the other one may have been told, and have left, before
    group.close()
    with pytest.raises(GroupError, match="has left the group"):
        group.send(np.empty(1), 1 - group.rank, async_op=True).wait()


def test_all_that_is_begun(tmp_path: Path) -> None:
    assert results(all_of_it, tmp_path, 2) == [None, None]


def small_messages(group: Group) -> None:
    other, count = 1 - group.rank, 200
    sent = [group.send(np.full(1, float(i)), other, async_op=True) for i in range(count)]
    # Until the other one takes some there is credit for fewer of them, which have left at once.
    assert sent[0].done()
    assert not sent[-1].done()
    group.barrier()
    assert [group.receive(np.empty(1), other)[0] for _ in range(count)] == [*range(count)]
    assert [work.wait() for work in sent] == [None] * count


def test_small_messages_leave_at_once_and_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORWIRE_STREAM_WINDOW_BYTES", "64K")
    assert results(small_messages, tmp_path, 2) == [None, None]


def test_a_work_has_one_future_whenever_that_is_asked_for() -> None:
    early: Work[int] = Work()
    late: Work[int] = Work()
    future = early.future()
    assert not future.done()
    assert not future.cancel()
    early.end(7)
    late.end(None, ValueError("it went wrong"))
    assert early.future() is future
    assert future.result(0) == early.wait(0) == 7
    with pytest.raises(ValueError, match="it went wrong"):
        late.future().result(0)
    with pytest.raises(ValueError, match="it went wrong"):
        late.wait()


def test_a_work_is_waited_for_however_long() -> None:
    work: Work[int] = Work()
    with futures.ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(work.wait, limit) for limit in (math.inf, 1e300)]
        assert not futures.wait(waiting, 0.05).done
        work.end(7)
        assert [each.result(10) for each in waiting] == [7, 7]


def test_a_time_that_is_no_number_is_refused() -> None:
    begun: Work[int] = Work()
    ended: Work[int] = Work()
    ended.end(7)
    for work in (begun, ended):
        with pytest.raises(ValueError, match="a timeout is a number of seconds, or None, not nan"):
            work.wait(math.nan)


def test_lines_have_threads_while_there_is_something_in_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lines, "MOST", 2)
    lines, over, before = Lines("lines of a test"), threading.Event(), set(threading.enumerate())
    works = [lines.begin(key, over.wait) for key in ("a", "b", "a")]
    assert len(set(threading.enumerate()) - before) == 2
    with pytest.raises(RuntimeError, match="2 messages of different ranks and tags"):
        lines.begin("c", over.wait)
    assert lines.in_turn("c", lambda: 7) == 7
    assert not any(work.done() for work in works)
    over.set()
    assert [work.wait() for work in works] == [True] * 3
    assert lines.begin("c", lambda: 8).wait() == 8
    lines.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("kind", [Line, Lines])
def test_a_callback_waits_for_what_has_its_turn_at_once(kind: type[Line] | type[Lines]) -> None:
    made = kind("line of a test")
    key = () if isinstance(made, Line) else ("a",)
    begin, in_turn = partial(made.begin, *key), partial(made.in_turn, *key)
    go, found = threading.Event(), []
    first = begin(go.wait)
    first.future().add_done_callback(lambda _: found.append(in_turn(lambda: 7)))
    behind = begin(lambda: list(found))
    go.set()
    assert behind.wait(10) == [7]
    made.close()
