# SPDX-License-Identifier: Apache-2.0
"""How a group of processes ends: by a rank that fails, is lost, late or interrupted, or as it
should."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.collective.ranks import LIMIT_SECONDS, on_a_host, ranks, results
from tests.forked import inherited

import tensorwire.collective.work as work_module
from tensorwire.collective import (
    DisagreementError,
    FileStore,
    Group,
    GroupError,
    RankLostError,
    Work,
    join,
)
from tensorwire.collective.work import Line, Lines


def disagree(group: Group) -> str:
    different: Callable[[], Any] = group.barrier
    if group.rank == 1:
        different = partial(group.all_reduce, np.zeros(3, np.int16), "max")
    with pytest.raises(GroupError) as caught:
        different()
    assert isinstance(caught.value, DisagreementError | RankLostError)
    with pytest.raises(GroupError, match="called"):
        group.barrier()
    return str(caught.value)


def test_ranks_that_call_different_operations(tmp_path: Path, fabric: str) -> None:
    for text in results(disagree, tmp_path, 2, on_a_host=on_a_host(fabric) // 2):
        assert "called barrier" in text
        assert "called all_reduce of 3 int16, max" in text


def give_too_much(group: Group) -> str:
    """By rank 0 to rank 1, and by each to itself."""
    rows = np.ones(3)
    with pytest.raises(ValueError, match="gives itself"):
        group.all_to_all(rows, [2 - group.rank, 1 + group.rank], [1, 1])
    group.barrier()  # which goes on

    def disagree() -> None:
        group.all_to_all(rows[group.rank :], [1, 2] if group.rank == 0 else [1, 1], [1, 1])
        group.barrier()  # as rank 0 has what it takes

    with pytest.raises(GroupError) as caught:
        disagree()
    assert isinstance(caught.value, DisagreementError | RankLostError)
    return str(caught.value)


def test_ranks_that_give_and_take_different_sizes(tmp_path: Path, fabric: str) -> None:
    for text in results(give_too_much, tmp_path, 2, on_a_host=on_a_host(fabric) // 2):
        assert "gives 16 bytes to rank 1" in text


def reduce_for_ever(group: Group, count: int, ready: str) -> str:
    array = np.ones(count, np.float32)
    group.barrier()
    FileStore(ready).set(str(group.rank), b"")
    try:
        while True:
            group.all_reduce(array, "max")
    except RankLostError as error:
        while not group.gone(1):  # also where another rank was the first to notice
            time.sleep(0)
        assert not group.gone(group.rank)
        return str(error)


LOST = r"rank 1 \(.*\) is gone: .*; see what its process has said, or make a group without it"


@pytest.mark.parametrize("count", [1, 3_000_000])
def test_who_is_left_by_a_killed_rank_is_told(tmp_path: Path, count: int, fabric: str) -> None:
    ready = FileStore(tmp_path / "ready")
    program = partial(ranks, reduce_for_ever, tmp_path, 3, count, str(tmp_path / "ready"))
    with program(on_a_host=on_a_host(fabric)) as running:
        for rank in range(3):
            ready.get(str(rank), LIMIT_SECONDS)
        running.processes[1].kill()
        for rank in (0, 2):
            assert re.search(LOST, running.result(rank))


def die_on_the_way_into_a_part(group: Group) -> str:
    if group.rank == 1:
        group.all_gather(np.array([True, 0, 0, 1], np.int64))  # as a split begins
        os._exit(0)
    with pytest.raises(RankLostError) as caught:
        group.split(0)
    return str(caught.value)


def test_a_rank_that_dies_in_a_split_is_not_waited_for(tmp_path: Path) -> None:
    with ranks(die_on_the_way_into_a_part, tmp_path, 3) as running:
        for rank in (0, 2):
            assert running.result(rank)


def split_shortly(group: Group) -> float | None:
    if group.rank == 1:
        group.all_gather(np.array([True, 0, 0, 1], np.int64))
        group.receive(np.empty(1), 0)
        return None
    with pytest.raises(TimeoutError, match="rank 1 has not come"):
        group.split(0, timeout=0.5)
    group.send(np.empty(1), 1)
    return group.timeout


def test_a_split_has_a_time_limit(tmp_path: Path) -> None:
    assert results(split_shortly, tmp_path, 2) == [LIMIT_SECONDS, None]


def wait_shortly(group: Group) -> str:
    with pytest.raises(TimeoutError) as caught:
        group.all_reduce(np.ones(8), timeout=0.5)
    return str(caught.value)


def stop_oneself(group: Group) -> str:
    if group.rank == 0:
        return wait_shortly(group)
    os.kill(os.getpid(), signal.SIGSTOP)
    return ""


def test_a_stopped_rank_ends_the_wait_for_it(tmp_path: Path, fabric: str) -> None:
    with ranks(stop_oneself, tmp_path, 2, on_a_host=on_a_host(fabric) // 2) as running:
        said = running.result(0)
    assert re.search(r"rank 1 \(.*\) has not come to its part of all_reduce of 8 float64", said)
    assert said.endswith("in time; a longer timeout waits for a rank that is only slow")


def abort_from_a_thread(group: Group) -> str:
    if group.rank == 0:
        timer = threading.Timer(0.05, group.abort, ["the user had enough"])
        timer.start()
        with pytest.raises(GroupError, match="the user had enough"):
            group.barrier()
        timer.join()
        return ""
    with pytest.raises(GroupError) as caught:
        group.receive(np.empty(3), 0)
    return str(caught.value)


def test_abort(tmp_path: Path) -> None:
    assert "the user had enough" in results(abort_from_a_thread, tmp_path, 2)[1]


def fail_in_one(group: Group) -> str:
    if group.rank == 1:
        with pytest.raises(RankLostError) as caught:
            group.receive(np.empty(3), 0)
        return str(caught.value)
    work = group.all_reduce(np.ones(3), async_op=True)
    try:
        with group:
            raise ArithmeticError("the loss is NaN")
    except ArithmeticError:
        with pytest.raises(GroupError, match="the loss is NaN"):
            work.wait()
    return ""


def test_what_a_rank_fails_by_is_told_to_the_others(tmp_path: Path) -> None:
    assert "ArithmeticError: the loss is NaN" in results(fail_in_one, tmp_path, 2)[1]


def interrupt_oneself(group: Group) -> str:
    if group.rank == 1:
        with pytest.raises(RankLostError) as caught:
            group.receive(np.empty(3), 0)
        return str(caught.value)
    timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        group.barrier()
    timer.join()
    return ""


def test_interrupt(tmp_path: Path) -> None:
    assert "interrupted" in results(interrupt_oneself, tmp_path, 2)[1]


def interrupt_while_it_comes(group: Group, folder: str) -> None:
    array = np.empty(4)
    interrupted = FileStore(folder)
    if group.rank == 1:
        interrupted.get("interrupted", LIMIT_SECONDS)
        for tag in (7, 8):
            group.send(array, 0, tag)
        group.barrier()
        return
    later = group.receive(np.empty(4), 1, 8, async_op=True)

    def take_one(*_: object) -> None:
        interrupted.set("interrupted", b"")
        later.wait()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, take_one)
    timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come at once
        timer.start()
        group.receive(array, 1, 7)
    timer.join()
    group.barrier()


def test_a_message_that_comes_while_its_wait_is_interrupted(tmp_path: Path) -> None:
    results(interrupt_while_it_comes, tmp_path, 2, str(tmp_path / "interrupted"))


@pytest.mark.parametrize("name", ["TENSORWIRE_GROUP_HOST", "TENSORWIRE_RUNTIME_DIR"])
def test_an_error_with_bytes_that_are_no_text(name: str) -> None:
    program = (
        "import sys; from tensorwire.collective import GroupError, join\n"
        "try:\n    join(sys.argv[1], 0, 2, timeout=5)\n"
        "except (GroupError, ValueError) as error:\n    print(ascii(error))"
    )
    arguments = [sys.executable, "-c", program]
    environment = {**os.environb, name.encode(): b"/proc/nope\xff"}
    with tempfile.TemporaryDirectory() as folder:
        said = subprocess.run(
            [*arguments, folder], env=environment, check=True, capture_output=True, text=True
        )
    assert r"/proc/nope\ufffd" in said.stdout, said


def fork_and_go_on(group: Group) -> int:
    child = os.fork()
    if child == 0:
        try:
            group.barrier()
        except GroupError as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    group.barrier()
    return status


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_is_no_rank(tmp_path: Path) -> None:
    assert results(fork_and_go_on, tmp_path, 2) == [7, 7]


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_does_not_wait_for_what_its_parent_began() -> None:
    line, lines, over = Line("a rank"), Lines("messages"), threading.Event()
    begun = [line.begin(over.wait), lines.begin("key", over.wait)]
    child = os.fork()
    if child == 0:
        line.close()
        lines.close()
        os._exit(line.in_turn(lambda: 3) + lines.in_turn("key", lambda: 4))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    over.set()
    assert [work.wait() for work in begun] == [True, True]
    line.close()
    lines.close()
    assert status == 7


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_works_end_in_a_child_that_was_forked_while_one_ended() -> None:
    def end() -> None:
        work: Work[int] = Work()
        work.end(3)
        assert work.future().result(0) == 3

    with work_module._futures:
        assert inherited(end) == [""]


def test_a_rank_that_does_not_come(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="rank 1 has not come to the group of 2 in time"):
        join(tmp_path, 0, 2, timeout=0.05)
    with pytest.raises(ValueError, match="rank 2 of a group of 2 does not exist"):
        join(tmp_path, 2, 2)


@pytest.mark.parametrize(
    ("store", "rank", "size", "says"),
    [
        ("folder", "0", 1, "rank is a whole number, not '0'"),
        (0, 1, "folder", "size is a whole number, not 'folder'"),
        (None, 0, 1, "the store is a Store, .*a folder or host:port, not None"),
    ],
)
def test_arguments_that_are_none(store: Any, rank: Any, size: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        join(store, rank, size)


def come_shortly(folder: str, rank: int, end: Connection) -> None:
    try:
        join(folder, rank, 3, timeout=1.0)
    except TimeoutError as error:
        end.send(str(error))


def test_both_ranks_that_wait_name_the_one_that_never_joined(tmp_path: Path) -> None:
    """Rank 2 waits for an answer of rank 0, which itself waits for rank 1."""
    context = multiprocessing.get_context("spawn")
    waiting = []
    for rank in (0, 2):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=come_shortly, args=(str(tmp_path), rank, theirs))
        process.start()
        theirs.close()
        waiting.append((process, mine))
    for process, mine in waiting:
        assert mine.poll(LIMIT_SECONDS)
        assert mine.recv() == (
            "rank 1 has not come to the group of 3 in time; see whether its process runs, and has "
            "the same store"
        )
        process.join()


def leave_early(group: Group) -> str:
    group.barrier()
    if group.rank == 1:
        return ""
    with pytest.raises(RankLostError) as caught:
        group.barrier()
    return str(caught.value)


def test_who_is_left_by_a_rank_that_is_done_is_told(tmp_path: Path, fabric: str) -> None:
    first, _, third = results(leave_early, tmp_path, 3, on_a_host=on_a_host(fabric))
    for text in (first, third):
        assert re.search(r"rank 1 \(.*\) has left the group; all ranks make the same", text)


def test_a_closed_group_is_left(tmp_path: Path) -> None:
    group = join(tmp_path, 0, 1)
    group.close()
    group.close()
    with pytest.raises(GroupError, match="has left the group"):
        group.barrier()
