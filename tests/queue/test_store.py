# SPDX-License-Identifier: Apache-2.0
"""The queue itself, without processes, threads and time."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tensorwire.queue.encoded import Encoded
from tensorwire.queue.errors import ClosedError
from tensorwire.queue.store import Item, ItemTicket, RoomTicket, Stats, Store

CAPACITY = 3
CAPACITY_BYTES = 10


def item(nbytes: int = 1) -> Item:
    return Encoded([b"-"], nbytes)


def nothing() -> None:
    return


def taken(store: Store, most: int) -> list[Item]:
    ticket = ItemTicket(most)
    assert store.take_now(ticket) == bool(ticket.items)
    return ticket.items


def accounted(stats: Stats) -> bool:
    parts = (stats.items, stats.handed, stats.delivered, stats.lost, stats.discarded)
    return stats.accepted == sum(parts)


def test_room_is_given_in_the_order_in_which_it_was_asked_for() -> None:
    store = Store("q", 1, 100)
    woken: list[int] = []
    assert store.offer(item(), nothing) is None
    tickets = [store.offer(item(2 + n), lambda n=n: woken.append(n)) for n in range(3)]  # type: ignore[misc]
    for n in range(3):
        assert woken == list(range(n))
        assert len(taken(store, 5)) == 1
    assert all(ticket is not None and ticket.accepted for ticket in tickets)


def test_a_large_item_is_not_passed_by_small_ones() -> None:
    store = Store("q", 10, 10)
    store.offer(item(6), nothing)
    large = store.offer(item(5), nothing)
    small = store.offer(item(1), nothing)
    assert large
    assert small
    assert not small.accepted
    assert store.room() == (0, 0), "nobody is promised room that others wait for"
    assert store.withdraw(large)
    assert small.accepted


def test_a_queue_that_has_more_than_its_capacity_takes_nothing() -> None:
    """Items that were handed out come back, when others have taken their places."""
    store = Store("q", 2, 10)
    assert store.offer_now([item(4)] * 2) == 2
    handed = store.take(2, nothing).items
    assert store.offer_now([item(4)] * 2) == 2
    store.give_back(handed)
    assert store.stats(0, 0).items == 4
    assert store.room() == (0, 0)
    assert store.offer_now([item(1)] * 5) == 0


def test_consumers_take_turns() -> None:
    store = Store("q", 10, 100)
    first, second = store.take(3, nothing), store.take(1, nothing)
    assert taken(store, 1) == []
    store.offer(item(1), nothing)
    store.offer(item(2), nothing)
    assert [[i.nbytes for i in ticket.items] for ticket in (first, second)] == [[1], [2]]


def test_what_is_given_back_is_the_next() -> None:
    store = Store("q", 2, 100)
    for nbytes in (1, 2):
        store.offer(item(nbytes), nothing)
    ticket = store.take(2, nothing)
    store.offer(item(3), nothing)
    store.give_back(ticket.items)
    assert [i.nbytes for i in taken(store, 5)] == [1, 2, 3]


@pytest.mark.parametrize("drain", [True, False])
def test_a_closed_queue_wakes_all(drain: bool) -> None:
    store = Store("q", 1, 100)
    woken: list[str] = []
    store.offer(item(), nothing)
    waits = store.offer(item(), lambda: woken.append("producer"))
    assert waits
    store.close(drain)
    assert woken == ["producer"]
    with pytest.raises(ClosedError):
        store.settled(waits)
    with pytest.raises(ClosedError):
        store.offer(item(), nothing)
    assert len(taken(store, 2)) == drain
    with pytest.raises(ClosedError):
        store.take(1, nothing)
    assert accounted(store.stats(0, 0))

    empty = Store("q", 1, 100)
    ticket = empty.take(1, lambda: woken.append("consumer"))
    empty.close(drain)
    assert woken == ["producer", "consumer"]
    with pytest.raises(ClosedError):
        empty.check(ticket)


class Model(RuleBasedStateMachine):
    """Any sequence of operations, beside a list."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store("q", CAPACITY, CAPACITY_BYTES)
        self.next = 0
        self.producers: deque[RoomTicket] = deque()
        self.consumers: deque[ItemTicket] = deque()
        self.handed: list[list[Item]] = []
        self.given_back = 0
        self.seen: list[int] = []
        self.closed = False

    def made(self, nbytes: int) -> Item:
        self.next += 1
        return Encoded([str(self.next).encode()], nbytes)

    @precondition(lambda self: not self.closed)
    @rule(nbytes=st.integers(1, CAPACITY_BYTES))
    def offer(self, nbytes: int) -> None:
        ticket = self.store.offer(self.made(nbytes), nothing)
        if ticket:
            self.producers.append(ticket)

    @precondition(lambda self: not self.closed)
    @rule(sizes=st.lists(st.integers(1, CAPACITY_BYTES), min_size=1, max_size=4))
    def offer_now(self, sizes: list[int]) -> None:
        before = self.store.stats(0, 0)
        items = [self.made(nbytes) for nbytes in sizes]
        count = self.store.offer_now(items)
        assert self.store.stats(0, 0).accepted == before.accepted + count
        assert not before.waiting_producers or count == 0

    @rule(number=st.integers(0, 5))
    def withdraw(self, number: int) -> None:
        if number < len(self.producers):
            self.store.withdraw(self.producers[number])
            del self.producers[number]

    @precondition(lambda self: not self.closed)
    @rule(most=st.integers(1, 3))
    def take(self, most: int) -> None:
        self.consumers.append(self.store.take(most, nothing))

    @rule(number=st.integers(0, 5))
    def cancel(self, number: int) -> None:
        if number < len(self.consumers) and self.store.cancel(self.consumers[number]):
            del self.consumers[number]

    @rule(most=st.integers(1, 3))
    def take_now(self, most: int) -> None:
        self.see(taken(self.store, most))

    @precondition(lambda self: self.handed)
    @rule(fate=st.sampled_from(["confirm", "lose", "give back"]))
    def end(self, fate: str) -> None:
        items = self.handed.pop()
        if fate == "confirm":
            self.store.confirm(len(items))
        elif fate == "lose":
            self.store.lose(len(items))
        else:
            self.given_back += len(items)
            self.store.give_back(items)

    @rule(drain=st.booleans())
    def close(self, drain: bool) -> None:
        self.store.close(drain)
        self.closed = True

    def see(self, items: list[Item]) -> None:
        self.seen += [int(bytes(i.segments[0])) for i in items]

    @invariant()
    def holds(self) -> None:
        for ticket in [ticket for ticket in self.consumers if ticket.items]:
            self.consumers.remove(ticket)
            assert 1 <= len(ticket.items) <= ticket.most
            self.handed.append(ticket.items)
            self.see(ticket.items)
        stats = self.store.stats(0, 0)
        assert accounted(stats)
        assert stats.items <= CAPACITY + self.given_back
        assert stats.nbytes <= CAPACITY_BYTES * (1 + self.given_back)
        assert not (stats.items and stats.waiting_consumers)
        if not self.given_back:
            assert self.seen == sorted(self.seen), "in the order in which they were put"
            assert len(self.seen) == len(set(self.seen)), "at most once"


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=30)
