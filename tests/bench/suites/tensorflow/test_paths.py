# SPDX-License-Identifier: Apache-2.0
"""Which way tensors went: rows about another way than the one asked for are refused."""

from __future__ import annotations

import pytest

from tensorwire.bench.contenders.tensorflow.grpc import Grpc
from tensorwire.bench.contenders.tensorflow.tensorwire import IN_PLACE_FROM, Tensorwire
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.tensorflow.cluster import grown
from tensorwire.bench.suites.tensorflow.contender import PathError, Taken

NAMES = (
    *("received_in_place", "received_in_place_bytes", "received_shm", "received_shm_bytes"),
    *("received_verbs", "received_verbs_bytes", "received_tcp", "received_tcp_bytes"),
    *("received_grpc", "served_grpc"),
    *("collective_received", "collective_received_bytes", "collective_grpc"),
    *("collective_grouped", "collective_grouped_bytes"),
    *("group_memory_bytes", "group_message_bytes"),
)
LARGE = Work("tensor", IN_PLACE_FROM)
taken = Tensorwire().taken


def counts(**changed: int) -> dict[str, int]:
    assert set(changed) <= set(NAMES)
    return {**dict.fromkeys(NAMES, 0), **changed}


def test_counters_of_both_processes_are_added_up() -> None:
    before = [counts(received_tcp=3), counts()]
    after = [counts(received_tcp=5), counts(received_tcp=4, received_grpc=1)]
    found = grown(before, after)
    assert (found["received_tcp"], found["received_grpc"], found["received_shm"]) == (6, 1, 0)
    assert grown([{}, {}], [{}, {}]) == {}


def test_stock_counts_nothing() -> None:
    assert Grpc().counts() == {}
    assert Grpc().taken(LARGE, "grpc", 3, {}) == Taken("grpc", None)
    with pytest.raises(PathError, match="not loaded"):
        taken(LARGE, "shm", 3, {})


def test_in_place() -> None:
    found = counts(
        received_in_place=3,
        received_in_place_bytes=3 * LARGE.size,
        received_shm=1,
        received_shm_bytes=LARGE.size,
    )
    assert taken(LARGE, "shm", 3, found) == Taken("shm", 0.75)
    with pytest.raises(PathError, match=r"only .* in place"):
        taken(LARGE, "shm", 4, found)


def test_what_is_small_may_be_copied() -> None:
    found = counts(received_shm=2, received_shm_bytes=8)
    assert taken(Work("tensor", 4), "shm", 2, found) == Taken("shm", 0.0)
    with pytest.raises(PathError, match="only 8 of 12 bytes"):
        taken(Work("tensor", 4), "shm", 3, found)


@pytest.mark.parametrize(("way", "other"), [("tcp", "shm"), ("verbs", "tcp"), ("tcp", "verbs")])
def test_between_hosts(way: str, other: str) -> None:
    found = counts(**{f"received_{way}": 1, f"received_{way}_bytes": LARGE.size})
    assert taken(LARGE, way, 1, found) == Taken(way, 0.0)
    with pytest.raises(PathError, match=f"took {way} instead"):
        taken(LARGE, other, 1, found)


@pytest.mark.parametrize(
    "counter", ["received_grpc", "served_grpc", "collective_grpc", "received_tcp", "received_verbs"]
)
def test_one_tensor_by_another_way_is_too_many(counter: str) -> None:
    found = counts(received_in_place=1, received_in_place_bytes=LARGE.size)
    assert taken(LARGE, "shm", 1, found).transport == "shm"
    with pytest.raises(PathError):
        taken(LARGE, "shm", 1, found | {counter: 1})


def test_gradients_come_back() -> None:
    work = Work("ps-step", IN_PLACE_FROM)
    found = counts(received_tcp=20, received_tcp_bytes=2 * work.size)
    assert taken(work, "tcp", 1, found).transport == "tcp"
    with pytest.raises(PathError, match="only"):
        taken(work, "tcp", 2, found)


def test_buffers_of_a_collective_and_a_tensor_beside_it_that_tells_the_transport() -> None:
    work = Work("allreduce", IN_PLACE_FROM)
    by_group = counts(received_shm=1, collective_grouped_bytes=2 * work.size)
    assert taken(work, "shm", 1, by_group) == Taken("shm", None)
    found = counts(received_shm=1, collective_received_bytes=2 * work.size)
    assert taken(work, "shm", 1, found) == Taken("shm", None)
    with pytest.raises(PathError, match="only"):
        taken(work, "shm", 2, found)
    with pytest.raises(PathError, match="took shm instead"):
        taken(work, "tcp", 1, found)
    with pytest.raises(PathError, match="no link"):
        taken(work, "shm", 1, found | {"received_shm": 0})


@pytest.mark.parametrize(
    ("way", "counter", "other"),
    [
        ("shm", "group_memory_bytes", "group_message_bytes"),
        ("tcp", "group_message_bytes", "group_memory_bytes"),
    ],
)
def test_gradients_of_a_strategy(way: str, counter: str, other: str) -> None:
    work = Work("mirrored", IN_PLACE_FROM)
    found = counts(**{counter: 2 * work.size})
    ring = counts(collective_received_bytes=2 * work.size)
    assert taken(work, way, 1, found) == taken(work, way, 1, ring) == Taken(way, None)
    for wrong in (counts(**{other: 2 * work.size}), counts(**{counter: 2 * work.size - 4})):
        with pytest.raises(PathError, match="only"):
            taken(work, way, 1, wrong)
    with pytest.raises(PathError, match="stock gRPC"):
        taken(work, way, 1, found | {"collective_grpc": 1})
