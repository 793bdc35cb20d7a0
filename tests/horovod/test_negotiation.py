# SPDX-License-Identifier: Apache-2.0
"""What ranks agree on, without processes: each has a machine, and all see the same messages."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.horovod import fusion, negotiation
from tensorwire.horovod.negotiation import Negotiator, Request, Response


def allreduce(name: str, shape: tuple[int, ...] = (4,), **more: object) -> Request:
    fields = {"op": "sum", "tensors": (("float32", shape),), **more}
    return Request(negotiation.ALLREDUCE, name, **fields)  # type: ignore[arg-type]


def joining() -> Request:
    return Request(negotiation.JOIN, negotiation.JOIN)


class Ranks:
    def __init__(self, size: int, capacity: int = 1024) -> None:
        self.each = [Negotiator(rank, size, capacity) for rank in range(size)]
        self.exchanges = 0

    def add(self, *requests: Request | None) -> None:
        """One of each rank."""
        for rank, request in zip(self.each, requests, strict=True):
            if request is not None:
                rank.add(request)

    def cycle(self) -> list[Response]:
        bits = np.bitwise_and.reduce([rank.bits() for rank in self.each])
        found = [rank.agree(bits) for rank in self.each]
        responses = [ready for ready, _, _ in found]
        if found[0][1]:
            self.exchanges += 1
            messages = [rank.message() for rank in self.each]
            for rank, ready in zip(self.each, responses, strict=True):
                ready += rank.take(messages)
        assert all(ready == responses[0] for ready in responses)
        return responses[0]


def names(responses: list[Response]) -> list[str]:
    return [response.key[1] for response in responses]


def test_ready_once_all_ranks_ask() -> None:
    ranks = Ranks(2)
    ranks.add(allreduce("a"), allreduce("b"))
    assert ranks.cycle() == []
    assert ranks.each[0].missing((0, "a")) == [1]
    ranks.add(allreduce("b"), allreduce("a"))
    assert names(ranks.cycle()) == ["a", "b"]


def test_what_is_cached_takes_no_message() -> None:
    ranks = Ranks(3)
    for _ in range(4):
        ranks.add(*[allreduce("a")] * 3)
        assert names(ranks.cycle()) == ["a"]
    assert ranks.exchanges == 1


def test_a_cached_request_that_changes() -> None:
    ranks = Ranks(2)
    ranks.add(allreduce("a"), allreduce("a"))
    ranks.cycle()
    ranks.add(allreduce("a", (5,)), allreduce("a"))  # one of them hits
    assert ranks.cycle() == []
    (response,) = ranks.cycle()
    assert response.error == "ranks disagree on the shapes of 'a': rank 0: (5,); rank 1: (4,)"
    ranks.add(allreduce("a", (5,)), allreduce("a", (5,)))
    assert [each.error for each in ranks.cycle()] == [""]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (allreduce("a", (2, 2)), "shapes"),
        (allreduce("a", op="min"), "reduction of 'a': rank 0: sum; rank 1: min"),
        (allreduce("a", tensors=(("float64", (4,)),)), "types"),
        (allreduce("a", prescale=2.0), "prescale_factor"),
        (Request(negotiation.BARRIER, "a"), "operation of 'a': rank 0: allreduce; rank 1: barrier"),
    ],
)
def test_disagreement(other: Request, words: str) -> None:
    ranks = Ranks(2)
    ranks.add(allreduce("a"), other)
    (response,) = ranks.cycle()
    assert words in response.error


def test_those_who_joined_are_not_waited_for() -> None:
    ranks = Ranks(3)
    ranks.add(*[allreduce("a")] * 3)
    ranks.cycle()
    ranks.add(allreduce("b"), joining(), allreduce("b"))
    (response,) = ranks.cycle()
    assert (response.error, list(response.requests)) == ("", [0, 2])
    ranks.add(allreduce("a"), None, allreduce("a"))  # cached
    (response,) = ranks.cycle()
    assert (response.error, list(response.requests)) == ("", [0, 2])
    ranks.add(allreduce("c", op="min"), None, allreduce("c", op="min"))
    assert ranks.cycle()[0].error == "min of 'c' while ranks have joined (1)"
    ranks.add(joining(), None, None)
    assert ranks.cycle() == []
    ranks.add(None, None, joining())
    (response,) = ranks.cycle()
    assert (response.kind, response.last) == (negotiation.JOIN, 2)
    ranks.add(allreduce("a"), None, None)
    assert ranks.cycle() == []  # all of them count again


def test_a_process_set_waits_for_its_own_ranks() -> None:
    ranks = Ranks(3)
    for rank in ranks.each:
        rank.members[1] = (0, 2)
    for _ in range(2):  # in full, and cached
        ranks.add(allreduce("a", process_set=1), None, None)
        assert ranks.cycle() == []
        ranks.add(None, None, allreduce("a", process_set=1))
        assert names(ranks.cycle()) == ["a"]
    assert ranks.exchanges == 2
    for rank in ranks.each:
        rank.forget_process_set(1)
    assert ranks.cycle() == []


@pytest.mark.parametrize("cached", [False, True])
def test_what_is_outstanding_in_a_process_set_fails_when_that_is_removed(cached: bool) -> None:
    ranks = Ranks(3)
    for rank in ranks.each:
        rank.members[1] = (0, 2)
    if cached:
        ranks.add(allreduce("a", process_set=1), None, allreduce("a", process_set=1))
        ranks.cycle()
    ranks.add(allreduce("a", process_set=1), None, None)
    assert ranks.cycle() == []
    for rank in ranks.each:
        rank.forget_process_set(1)
    (response,) = ranks.cycle()
    removed = "allreduce of 'a': its process set has been removed"
    assert (response.error, list(response.requests)) == (removed, [0])
    ranks.add(None, None, allreduce("a", process_set=1))
    (response,) = ranks.cycle()
    assert (response.error, list(response.requests)) == (removed, [2])
    assert [rank.stalled(1e9) for rank in ranks.each] == [{}] * 3


def test_a_process_set_is_removed_after_what_is_ready_in_it() -> None:
    ranks = Ranks(2)
    for rank in ranks.each:
        rank.members[1] = (1,)
    remove = Request(negotiation.REMOVE_PROCESS_SET, "remove", root=1)
    ranks.add(remove, None)
    assert ranks.cycle() == []
    ranks.add(None, allreduce("a", process_set=1))
    ranks.add(None, remove)
    assert names(ranks.cycle()) == ["a", "remove"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (allreduce("a", tensors=(("complex64", (4,)),)), "tensors of complex64"),
        (Request(negotiation.BROADCAST, "a", tensors=(("object", (4,)),)), "tensors of object"),
        (allreduce("a", tensors=(("bool", (4,)),), op="average"), "bools have no average"),
        (Request(negotiation.ALLTOALL, "a", tensors=(("int8", ()),)), "without axes"),
        (Request(negotiation.REDUCESCATTER, "a", tensors=(("int8", ()),)), "without axes"),
    ],
)
def test_what_no_operation_takes(request_: Request, words: str) -> None:
    ranks = Ranks(2)
    for _ in range(2):  # and it is not cached
        ranks.add(request_, request_)
        (response,) = ranks.cycle()
        assert words in response.error
        assert response.unsupported
    ranks.add(allreduce("a"), request_)
    (response,) = ranks.cycle()
    assert "ranks disagree" in response.error
    assert not response.unsupported


@pytest.mark.parametrize(
    "request_",
    [
        allreduce("a", root=np.int64(1)),
        allreduce("a", root=1.5),
        allreduce("a", numbers=(1 << 64,)),
        allreduce("\ud800"),
    ],
)
def test_what_others_could_not_read_is_refused(request_: Request) -> None:
    negotiation.check(allreduce("a"))
    with pytest.raises(ValueError, match="cannot be told to the other ranks"):
        negotiation.check(request_)


def test_what_is_cached_is_named_when_it_stalls() -> None:
    ranks = Ranks(2)
    ranks.add(allreduce("a"), allreduce("a"))
    ranks.cycle()
    ranks.each[0].add(allreduce("a"), now=1.0)
    assert ranks.cycle() == []
    assert ranks.each[1].stalled(100.0) == {}
    ranks.each[0].unhit(before=2.0)
    assert ranks.cycle() == []
    assert ranks.each[1].stalled(100.0) == {"a": [1]}
    ranks.add(None, allreduce("a"))
    assert names(ranks.cycle()) == ["a"]


def test_leaving_is_told() -> None:
    ranks = Ranks(2)
    bits = ranks.each[0].bits(leaving=True) & ranks.each[1].bits()
    assert ranks.each[1].agree(bits) == ([], False, True)


@given(
    st.integers(2, 4),
    st.sampled_from([0, 2, 1024]),
    st.lists(st.lists(st.integers(0, 5), unique=True, min_size=1), min_size=1, max_size=4),
    st.integers(0, 2**32),
)
def test_each_tensor_is_ready_once_whatever_the_order(
    size: int, capacity: int, rounds: list[list[int]], seed: int
) -> None:
    random = Random(seed)
    ranks = Ranks(size, capacity)
    for wanted in rounds:
        left = []
        for _ in range(size):
            mine = list(wanted)
            random.shuffle(mine)
            left.append(mine)
        done: list[str] = []
        while any(left):
            for rank, mine in zip(ranks.each, left, strict=True):
                for _ in range(random.randint(0, len(mine))):
                    rank.add(allreduce(f"t{mine.pop()}"))
            done += names(ranks.cycle())
        while (more := ranks.cycle()) or len(done) < len(wanted):
            done += names(more)
        assert sorted(done) == sorted(f"t{each}" for each in wanted)


def response(name: str, elements: int, **more: object) -> Response:
    request = allreduce(name, (elements,), **more)
    return Response(request.kind, request.key, {0: request})


def test_fusion_is_of_one_type_and_within_the_threshold() -> None:
    ready = [
        response("a", 10),
        response("wide", 10, tensors=(("float64", (10,)),)),
        response("b", 10),
        response("minimum", 10, op="min"),
        response("c", 10),
        response("large", 1000),
    ]
    found = [names(batch) for batch in fusion.batches(ready, 80)]
    assert found == [["a", "b"], ["wide"], ["minimum"], ["c"], ["large"]]
