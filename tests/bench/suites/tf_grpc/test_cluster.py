# SPDX-License-Identifier: Apache-2.0
"""Who calls whom, and what the visits of several workers come to together."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.bench.harness.control import Control
from tensorwire.bench.harness.measure import MOST_KEPT
from tensorwire.bench.harness.resources import Monitor, Sample, Watched
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.tf_grpc.cluster import (
    Cluster,
    Settings,
    Topology,
    _measured,
)
from tensorwire.bench.suites.tf_grpc.contender import Request
from tensorwire.bench.suites.tf_grpc.suite import topology, topology_of_ranks

numbers = st.integers(1, 9)


@given(servers=numbers, workers=numbers)
def test_each_worker_calls_each_server(servers: int, workers: int) -> None:
    there = Topology(servers, workers)
    assert Counter(there.roles()) == {"server": servers, "worker": workers}
    addresses = list(map(str, range(servers)))
    called = [there.called_by(caller, addresses) for caller in range(workers)]
    assert [sorted(each) for each in called] == [sorted(addresses)] * workers
    first = Counter(each[0] for each in called)
    assert max(first.values()) - min(first.get(each, 0) for each in addresses) <= 1


@given(servers=numbers, workers=numbers)
def test_pairs_share_servers_evenly(servers: int, workers: int) -> None:
    there = Topology(servers, workers, pairs=True)
    addresses = list(map(str, range(servers)))
    called = [there.called_by(caller, addresses) for caller in range(workers)]
    assert [len(each) for each in called] == [1] * workers
    counts = Counter(address for (address,) in called)
    assert max(counts.values()) - min(counts.get(each, 0) for each in addresses) <= 1


@given(nodes=st.integers(2, 9))
def test_nodes_call_all_others(nodes: int) -> None:
    there = Topology(nodes=nodes)
    assert there.roles() == ["node"] * nodes
    assert there.callers == nodes
    addresses = list(map(str, range(nodes)))
    for caller in range(nodes):
        called = there.called_by(caller, addresses)
        assert sorted([*called, addresses[caller]]) == addresses


@given(pairs=numbers)
def test_pairs_call_each_other(pairs: int) -> None:
    there = topology("p2p-bandwidth", pairs, None, (), both_ways=True)
    assert there.roles() == ["node"] * 2 * pairs
    addresses = list(map(str, range(2 * pairs)))
    called = [int(there.called_by(caller, addresses)[0]) for caller in range(2 * pairs)]
    assert all(called[other] == caller != other for caller, other in enumerate(called))


def test_servers_elsewhere_are_not_started() -> None:
    there = topology("ps-throughput", None, 3, ["a:1", "b:1"])
    assert there.roles() == ["worker"] * 3
    assert there.servers == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("mimic", None, 2, ()), "give --servers alone"),
        (("mimic", 1, None, ()), "two nodes or more"),
        (("mimic", None, None, ("a",)), "by a launcher"),
        (("mimic", None, None, (), True), "p2p-latency and p2p-bandwidth"),
        (("p2p-latency", 2, 3, (), True), "as many of both"),
        (("p2p-latency", None, None, ("a",), True), "by a launcher"),
    ],
)
def test_other_topologies_are_refused(given: tuple[Any, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        topology(*given)


@pytest.mark.parametrize(
    ("given", "roles"),
    [
        (("p2p-latency", 2, None, None), "sw"),
        (("p2p-bandwidth", 4, None, None), "ssww"),
        (("p2p-bandwidth", 3, 1, 2), "sww"),
        (("p2p-latency", 4, None, None, True), "nnnn"),
        (("ps-throughput", 5, None, None), "swwww"),
        (("ps-throughput", 5, 2, None), "sswww"),
        (("mimic", 3, None, None), "nnn"),
    ],
)
def test_ranks_have_roles(given: tuple[Any, ...], roles: str) -> None:
    assert "".join(role[0] for role in topology_of_ranks(*given).roles()) == roles


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("ps-throughput", 5, 2, 2), "has started 5 processes, not 4"),
        (("ps-throughput", 2, 2, None), "has started 2 processes, not 3"),
        (("ps-throughput", 2, None, None, True), "p2p-latency and p2p-bandwidth"),
        (("p2p-latency", 3, None, None, True), "has started 3 processes, not 2"),
        (("mimic", 3, 2, None), "has started 3 processes, not 2"),
        (("mimic", 3, None, 3), "give --servers alone"),
    ],
)
def test_other_numbers_of_ranks_are_refused(given: tuple[Any, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        topology_of_ranks(*given)


def test_workers_begin_by_their_own_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers, whose clocks are hours apart from this one's."""
    hours = [7 * 3600 * 10**9, -3 * 3600 * 10**9]
    ours, theirs = zip(*(map(Control, socket.socketpair()) for _ in hours), strict=True)
    rank, silent = map(Control, socket.socketpair())
    begins: list[int] = []

    def work(control: Control, ahead: int) -> None:
        control.receive()
        control.send({"ready": True})
        assert control.receive() == {"clock": True}
        control.send({"clock": time.monotonic_ns() + ahead})
        begins.append(control.receive()["begin"] - ahead)
        control.send({"ended": True})
        assert control.receive() == {"tell": True}
        control.send(answer(1, 1.0, 1000))

    threads = [threading.Thread(target=work, args=each) for each in zip(theirs, hours, strict=True)]
    for thread in threads:
        thread.start()
    path = {"path": "tcp", "note": ""}
    request = Request("echo", "non-serialized", "ordinary", True, ((8,),))
    cluster = Cluster(
        ours,
        [path, path],
        nullcontext,
        partial(Monitor, [os.getpid()]),
        lambda work: request,
        Settings(0.0),
        {rank: "rank 1"},
    )
    before = time.monotonic_ns()
    cluster.visit(Work("one", 8), 1.0)
    after = time.monotonic_ns()
    for thread in threads:
        thread.join()
    assert all(before < begin < after for begin in begins)
    for control in (*ours, *theirs, rank, silent):
        control.close()


def test_what_workers_do_to_tell_is_not_watched() -> None:
    ours, theirs = map(Control, socket.socketpair())
    watched = threading.Event()

    @contextmanager
    def watch(interval: float, begin: float) -> Iterator[Watched]:
        yield SimpleNamespace(samples=[Sample(0.0, 0.0, 1, 2, 3)])
        watched.set()

    def work() -> None:
        theirs.receive()
        theirs.send({"ready": True})
        assert theirs.receive()["seconds"] == 1.0
        assert not watched.is_set()
        theirs.send({"ended": True})
        assert theirs.receive() == {"tell": True}
        assert watched.is_set()
        theirs.send(answer(1, 1.0, 1000))

    request = Request("echo", "non-serialized", "ordinary", True, ((8,),))
    path = {"path": "tcp", "note": ""}
    cluster = Cluster([ours], [path], nullcontext, watch, lambda work: request, Settings(0.0), {})
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        assert cluster.visit(Work("one", 8), 1.0).calls == 1
        working.result()
    ours.close()
    theirs.close()


def answer(calls: int, seconds: float, nanoseconds: int) -> dict[str, object]:
    return {
        "calls": calls,
        "seconds": seconds,
        "total": calls * nanoseconds,
        "least": nanoseconds,
        "most": nanoseconds,
        "told": [nanoseconds] * min(calls, 3 * MOST_KEPT),
        "path": "tcp",
        "note": "",
        "serialization": calls * 500,
        "warming": 0.0,
    }


def test_workers_add_up() -> None:
    samples = [Sample(0.0, 0.0, 1, 2, 3), Sample(2.0, 1.5, 1, 2, 3)]
    found = _measured([answer(100, 2.0, 20_000), answer(300, 2.0, 6_000)], samples)
    assert found.calls / found.seconds == pytest.approx(200)
    assert (found.p50_us, found.p99_us) == (6, 20)
    assert (found.min_us, found.mean_us, found.max_us) == (6, 9.5, 20)
    assert found.serialization_us == 0.5
    assert found.cpu_seconds == 1.5
    assert found.path == "tcp"
    assert len(found.samples_us) == 400


def test_processors_time_of_calls_that_warm_up_is_none_of_the_others() -> None:
    samples = [Sample(0.0, 0.0, 1, 2, 3), Sample(2.0, 1.5, 1, 2, 3)]
    answers = [{**answer(4, 2.0, 10**8), "warming": warming} for warming in (0.75, 1.25)]
    assert _measured(answers, samples).cpu_seconds == pytest.approx(1.5 * 8 / 10)


def test_a_report_keeps_some_times_of_each_worker() -> None:
    samples = [Sample(0.0, 0.0, 1, 2, 3)]
    found = _measured([answer(4 * MOST_KEPT, 1.0, 1000), answer(MOST_KEPT, 1.0, 2000)], samples)
    assert Counter(found.samples_us) == {1.0: MOST_KEPT // 2, 2.0: MOST_KEPT // 2}
