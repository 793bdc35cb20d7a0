# SPDX-License-Identifier: Apache-2.0
"""A group is made anew when ranks are lost, and lets others in."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.collective.ranks import LIMIT_SECONDS, ranks
from tests.collective.values import Values

from tensorwire.collective import (
    DisagreementError,
    ExcludedError,
    FileStore,
    FinishedError,
    Group,
    GroupError,
    GroupTimeoutError,
    RankLostError,
    Store,
    finish,
    join,
    newcomers,
    regroup,
    rejoin,
)


def total(group: Group) -> list[float]:
    """What shows that the group works."""
    found = group.all_reduce(np.full(3, group.rank + 1.0))
    return [group.rank, group.size, *found[:1].tolist()]


def until_lost(group: Group) -> None:
    try:
        while True:
            group.all_reduce(np.ones(10))
    except RankLostError:
        return


class Dying:
    """A store at which this process is killed before it sets a key."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key

    def set(self, key: str, value: bytes) -> None:
        if self._key in key:
            os.kill(os.getpid(), signal.SIGKILL)
        self._store.set(key, value)

    def get(self, key: str, timeout: float) -> bytes:
        return self._store.get(key, timeout)


def lose_and_go_on(group: Group, folder: str, deadly: dict[int, str]) -> Any:
    """Rank 5 dies in an operation, the others of ``deadly`` when they set a key. The survivors go
    on, and let a newcomer in."""
    store: Store = FileStore(folder)
    if group.rank in deadly:
        store = Dying(store, deadly[group.rank])
    with join(store, group.rank, group.size, timeout=LIMIT_SECONDS) as first:
        if first.rank == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        until_lost(first)
        with regroup(first) as second:
            found = [total(second)]
            store.set("ready for others", b"")
            while not second.all_reduce(np.array([newcomers(second)]), "min").item():
                pass
            with regroup(second) as third:
                split = third.split(0)
                assert split is not None
                with split:
                    return [*found, total(third), total(split), third.timeout]


def come_in(folder: str, results: Any) -> None:
    FileStore(folder).get("ready for others", LIMIT_SECONDS)
    with rejoin(folder, timeout=LIMIT_SECONDS) as group:
        split = group.split(0)
        assert split is not None
        with split:
            results.put([total(group), total(split)])


def test_ranks_that_die_before_and_while_the_group_is_made_anew(tmp_path: Path) -> None:
    deadly = {0: "regroup/1/record/0", 1: "regroup/1/chosen"}
    folder = str(tmp_path / "group")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    newcomer = context.Process(target=come_in, args=(folder, results), daemon=True)
    with ranks(lose_and_go_on, tmp_path, 6, folder, deadly) as running:
        newcomer.start()
        try:
            for rank, before in ((0, 2), (1, 3), (2, 4)):
                after = [rank, 4, 10.0]
                assert running.result(before) == [[rank, 3, 6.0], after, after, LIMIT_SECONDS]
            assert results.get(timeout=LIMIT_SECONDS) == [[3, 4, 10.0]] * 2
        finally:
            newcomer.kill()
            newcomer.join()


def stop_and_come_back(group: Group, folder: str) -> Any:
    last = group.rank == 2
    if last:
        FileStore(folder).set("pid", str(os.getpid()).encode())
        os.kill(os.getpid(), signal.SIGSTOP)
        # What it finds first: what the others called while it stood still, or that they are gone.
        with pytest.raises((RankLostError, DisagreementError)):
            total(group)
        with pytest.raises(ExcludedError, match=r"was rank 2 of 3 and is out: .* group of 2"):
            regroup(group)
        with rejoin(group.origin.store, timeout=LIMIT_SECONDS) as again:
            return total(again)
    with pytest.raises((TimeoutError, RankLostError)):
        group.all_reduce(np.ones(8), timeout=0.3)
    with regroup(group, timeout=1.0) as second:
        found = total(second)
        if second.rank == 0:
            pid = int(FileStore(folder).get("pid", LIMIT_SECONDS))
            os.kill(pid, signal.SIGCONT)
        while not second.all_reduce(np.array([newcomers(second)]), "min").item():
            pass
        with regroup(second) as third:
            return [found, total(third)]


def test_a_rank_that_was_only_slow_is_told_that_it_is_out(tmp_path: Path) -> None:
    with ranks(stop_and_come_back, tmp_path, 3, str(tmp_path / "told")) as running:
        assert running.result(0) == [[0, 2, 3.0], [0, 3, 6.0]]
        assert running.result(1) == [[1, 2, 3.0], [1, 3, 6.0]]
        assert running.result(2) == [2, 3, 6.0]


def in_threads(*programs: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(programs)) as pool:
        return list(pool.map(lambda program: program(), programs))


def test_any_store_will_do_and_several_come_in_at_once() -> None:
    store = Values()

    def stay(rank: int) -> Any:
        group = join(store, rank, 2, timeout=LIMIT_SECONDS)
        while group.all_reduce(np.array([newcomers(group)]), "min").item() < 3:
            pass
        with regroup(group) as second:
            return total(second)

    def come() -> Any:
        with rejoin(store, timeout=LIMIT_SECONDS) as group:
            return total(group)

    found = in_threads(lambda: stay(0), lambda: stay(1), come, come, come)
    assert [each[1:] for each in found] == [[5, 15.0]] * 5
    assert [found[0][0], found[1][0], *sorted(each[0] for each in found[2:])] == list(range(5))


def test_nobody_lets_a_newcomer_in() -> None:
    with pytest.raises(GroupTimeoutError, match=r"within 0\.2 s"):
        rejoin(Values(), timeout=0.2)


def test_a_newcomer_is_told_when_all_are_done() -> None:
    store = Values()

    def stay(rank: int) -> None:
        finish(join(store, rank, 2, timeout=LIMIT_SECONDS))

    def come() -> None:
        with pytest.raises(FinishedError):
            rejoin(store, timeout=LIMIT_SECONDS)

    in_threads(come, lambda: stay(0), lambda: stay(1))


def test_one_that_has_given_up_is_not_waited_for() -> None:
    store = Values()
    with pytest.raises(GroupTimeoutError):
        rejoin(store, timeout=0.0)
    with pytest.raises(GroupTimeoutError):
        rejoin(store, timeout=0.2)
    with join(store, 0, 1) as group:
        assert newcomers(group) == 1
        with regroup(group) as second:
            assert (second.size, newcomers(second)) == (1, 0)


def test_no_group_is_made_of_one_that_this_rank_has_left() -> None:
    store = Values()
    group = join(store, 0, 1)
    group.close()
    for refused in (lambda: group.gone(0), lambda: regroup(group), group.statistics):
        with pytest.raises(GroupError, match="has left the group"):
            refused()
    with pytest.raises(TimeoutError):  # others would wait for it
        store.get("regroup/1/here/0", 0.0)


def test_an_error_leaves_the_blocks_of_both_groups() -> None:
    with (
        pytest.raises(ZeroDivisionError),
        join(Values(), 0, 1) as group,
        regroup(group),
    ):
        raise ZeroDivisionError


def test_what_is_no_value_in_the_store_is_named() -> None:
    store = Values()
    with join(store, 0, 1) as group:
        store.set("regroup/1/chosen", b"\xff")
        with pytest.raises(Exception, match="has no Value at chosen"):
            regroup(group)
