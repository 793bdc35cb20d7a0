# SPDX-License-Identifier: Apache-2.0
"""The items of a queue, and who waits for them or for room: no I/O, no clock, no thread.

Whoever has to wait gets a ticket, and is called when it is served or the queue is closed. Tickets
are served in the order in which they came, those for room and those for items each.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tensorwire.observe.measure import Measure
from tensorwire.queue.errors import ClosedError
from tensorwire.rpc import registry

if TYPE_CHECKING:
    from typing_extensions import Buffer as BytesLike

Wake = Callable[[], object]


class Item(Protocol):
    """A message of ``tensors``, encoded: the header, and the memory of each tensor."""

    @property
    def segments(self) -> Sequence[BytesLike]: ...
    @property
    def nbytes(self) -> int: ...


class Stats(NamedTuple):
    """A queue at one moment. ``accepted`` is always the sum of ``items``, ``handed``,
    ``delivered``, ``lost`` and ``discarded``."""

    items: int
    """In the queue."""
    nbytes: int
    """Of these items."""
    handed: int
    """On their way to consumers, or in their hands and not yet confirmed."""
    accepted: int
    """All that the queue has ever taken."""
    delivered: int
    """Of those, how many consumers have confirmed."""
    lost: int
    """Handed to consumers that died, or that went without a word, before they confirmed."""
    discarded: int
    """In the queue when it was closed without a drain."""
    refused: int
    """Items whose producers have withdrawn them, mostly because the queue was full for too long.
    They count as nothing else."""
    producers: int
    """Processes' streams that are open to put."""
    consumers: int
    waiting_producers: int
    waiting_consumers: int
    closed: bool


WATCH: Final = registry.Watch(
    "queue",
    Stats,
    (
        Measure("queue_items", "gauge", "Items in the queue.", {"items": ()}),
        Measure("queue_bytes", "gauge", "Bytes of these items.", {"nbytes": ()}),
        Measure(
            "queue_handed_items",
            "gauge",
            "Items on their way to consumers, or in their hands and not yet confirmed.",
            {"handed": ()},
        ),
        Measure(
            "queue_waiting",
            "gauge",
            "Who waits: producers for room, consumers for items.",
            {"waiting_producers": ("producer",), "waiting_consumers": ("consumer",)},
            ("end",),
        ),
        Measure(
            "queue_streams",
            "gauge",
            "Streams of other processes that are open to put, or to get.",
            {"producers": ("producer",), "consumers": ("consumer",)},
            ("end",),
        ),
        Measure("queue_accepted_items", "counter", "Items that it has taken.", {"accepted": ()}),
        Measure(
            "queue_ended_items",
            "counter",
            "What became of items: confirmed by a consumer, lost with one, discarded at the "
            "queue's end, or withdrawn by their producers before it had taken them.",
            {
                "delivered": ("delivered",),
                "lost": ("lost",),
                "discarded": ("discarded",),
                "refused": ("refused",),
            },
            ("outcome",),
        ),
        Measure("queue_closed", "gauge", "Of the queues of this name, the closed.", {"closed": ()}),
    ),
)


def _nobody() -> None:
    """Is woken where nobody waits yet."""


class RoomTicket:
    """Of an item that wants into the queue. ``accepted``: the queue has taken it."""

    __slots__ = ("accepted", "item", "wake")

    def __init__(self, item: Item, wake: Wake = _nobody) -> None:
        self.item = item
        self.wake = wake
        self.accepted = False


class ItemTicket:
    """Of a consumer. ``items``: what it got, once it is served; ``delivered``: they count so, and
    not as handed."""

    __slots__ = ("delivered", "items", "most", "wake")

    def __init__(self, most: int, wake: Wake = _nobody) -> None:
        self.most = most
        self.wake = wake
        self.items: list[Item] = []
        self.delivered = False


class Store:
    """Thread-safe. Wakes are called while it is locked, perhaps twice: they must not call it.

    Ctrl-C may come between any two steps of the main thread, but neither between simple assignments
    that follow each other nor between these and the call after them. So changes that belong
    together are such. An item leaves its place after it has its next one; what else has to follow
    is noted, and whoever locks the store next begins with that. Tickets tell what has become of
    them, so that ``withdraw`` and ``forgo`` undo what was interrupted.
    """

    def __init__(self, name: str, capacity: int, capacity_bytes: int) -> None:
        self.name: Final = name
        self.capacity: Final = capacity
        self.capacity_bytes: Final = capacity_bytes
        self._lock = threading.Lock()  # guards what follows
        self._items: deque[Item] = deque()
        self._nbytes = 0
        self._leaving = 0  # the first items, which have their next place, and count there
        self._unserved = False  # somebody may be served, or items are leaving
        self._producers: deque[RoomTicket] = deque()
        self._consumers: deque[ItemTicket] = deque()
        self._closed = self._discarding = False
        self._handed = self._accepted = self._delivered = 0
        self._lost = self._discarded = self._refused = 0

    # ------------------------------------------------------------------------------- producers

    def offer(self, item: Item, wake: Wake) -> RoomTicket | None:
        """None: the queue has taken it. Otherwise it waits for room until ``wake`` is called, or
        ``withdraw``. Raises ClosedError."""
        ticket = RoomTicket(item, wake)
        return None if self.enter(ticket) else ticket

    def enter(self, ticket: RoomTicket) -> bool:
        """As ``offer``. True: the queue has taken it."""
        with self._lock:
            if self._unserved:
                self._serve()
            self._check_open()
            if self._producers or not self._fits(ticket.item):
                self._producers.append(ticket)
                return False
            self._accept(ticket)
            if self._unserved:
                self._serve()
            return True

    def offer_now(self, items: Sequence[Item]) -> int:
        """How many of them, the first ones, the queue has taken. Raises ClosedError."""
        with self._lock:
            if self._unserved:
                self._serve()
            self._check_open()
            if self._producers:
                return 0
            count = self._accept_first(items)
            if count and self._consumers:
                self._serve()
            return count

    def withdraw(self, ticket: RoomTicket) -> bool:
        """False: the queue has taken it."""
        with self._lock:
            if self._unserved:
                self._serve()
            if ticket.accepted:
                return False
            if ticket in self._producers:
                self._refused += 1
                self._unserved = True  # a smaller item behind it may fit
                self._producers.remove(ticket)
                self._serve()
            return True

    def refuse(self) -> None:
        """Counts an item that was withdrawn before it was offered."""
        with self._lock:
            self._refused += 1

    def settled(self, ticket: RoomTicket) -> bool:
        """Whether the queue has taken it. Raises ClosedError when it never will."""
        with self._lock:
            if self._unserved:
                self._serve()
            if not ticket.accepted:
                self._check_open()
            return ticket.accepted

    def room(self) -> tuple[int, int]:
        """Items and bytes."""
        with self._lock:
            if self._unserved:
                self._serve()
            if self._producers:
                return 0, 0
            # What was given back may exceed both.
            items = max(self.capacity - len(self._items), 0)
            return items, max(self.capacity_bytes - self._nbytes, 0)

    # ------------------------------------------------------------------------------- consumers

    def take_first(self, ticket: ItemTicket) -> bool:
        """As ``take_now``, of one."""
        with self._lock:
            if self._unserved:
                self._serve()
            if not self._items or self._consumers:
                return False
            item = self._items[0]
            unserved = bool(self._producers)
            ticket.items = [item]
            ticket.delivered = True
            self._nbytes -= item.nbytes
            self._delivered += 1
            self._unserved = unserved
            self._items.popleft()
            if unserved:
                self._serve()
            return True

    def take_now(self, ticket: ItemTicket) -> bool:
        """Gives it items that are there, which count as delivered. False: there are none, or others
        wait for some."""
        with self._lock:
            if self._unserved:
                self._serve()
            if not self._items or self._consumers:
                return False
            self._hand(ticket, delivered=True)
            self._serve()
            return True

    def take(self, most: int, wake: Wake) -> ItemTicket:
        """With 1 to ``most`` items, or none: then ``wake`` is called when it has some. Items count
        as handed. Raises ClosedError when the queue is closed and empty."""
        ticket = ItemTicket(most, wake)
        self.wait(ticket)
        return ticket

    def wait(self, ticket: ItemTicket) -> None:
        """As ``take``."""
        with self._lock:
            if self._unserved:
                self._serve()
            if self._items and not self._consumers:
                self._hand(ticket)
                self._serve()
            else:
                self._check_open()
                self._consumers.append(ticket)

    def cancel(self, ticket: ItemTicket) -> bool:
        """False: it has got items."""
        with self._lock:
            if self._unserved:
                self._serve()
            if ticket.items:
                return False
            if ticket in self._consumers:
                self._consumers.remove(ticket)
            return True

    def check(self, ticket: ItemTicket) -> bool:
        """Whether it has items. Raises ClosedError when it will never have any."""
        with self._lock:
            if self._unserved:
                self._serve()
            if not ticket.items and ticket not in self._consumers:
                self._check_open()
            return bool(ticket.items)

    def give_back(self, items: Sequence[Item]) -> None:
        """Puts items that were handed and not seen to the front again, whatever the capacity."""
        ticket = ItemTicket(len(items))
        ticket.items = [*items]
        self.forgo(ticket)

    def forgo(self, ticket: ItemTicket, kept: int = 0) -> None:
        """It waits no more. Puts what it has got, but the first ``kept``, to the front again."""
        with self._lock:
            if self._unserved:
                self._serve()
            if ticket in self._consumers:
                self._consumers.remove(ticket)
            back = ticket.items[kept:]
            back.reverse()
            count = len(back)
            if not count:
                return
            held = ticket.items[:kept]
            nbytes = self._nbytes + sum([item.nbytes for item in back])
            if self._discarding:
                ticket.items = held
                self._discarded += count
                if ticket.delivered:
                    self._delivered -= count
                else:
                    self._handed -= count
                return
            ticket.items = held
            if ticket.delivered:
                self._delivered -= count
            else:
                self._handed -= count
            self._nbytes = nbytes
            self._unserved = True
            self._items.extendleft(back)
            self._serve()

    def deliver(self, ticket: ItemTicket) -> None:
        """What it has got was handed, and counts as delivered from now on."""
        with self._lock:
            count = len(ticket.items)
            ticket.delivered = True
            self._handed -= count
            self._delivered += count

    def confirm(self, count: int) -> None:
        """So many items that were handed have been delivered."""
        with self._lock:
            self._handed -= count
            self._delivered += count

    def lose(self, count: int) -> None:
        """So many items that were handed may or may not have been seen."""
        with self._lock:
            self._handed -= count
            self._lost += count

    # ------------------------------------------------------------------------------------- all

    def close(self, drain: bool) -> None:
        """Takes no more items, and wakes who waits for room. ``drain``: items that are there can
        still be taken; else they are discarded. Wakes who waits for items when there are none."""
        with self._lock:
            if self._unserved:
                self._serve()
            count = len(self._items)
            self._closed = True
            if not drain:
                self._discarding = True
                self._discarded += count
                self._nbytes = 0
                self._items.clear()
            waiting: Iterable[RoomTicket | ItemTicket] = [*self._producers, *self._consumers]
            for ticket in waiting:
                ticket.wake()
            self._producers.clear()
            self._consumers.clear()  # who waits for items does so because there are none

    @property
    def closed(self) -> bool:
        return self._closed

    def stats(self, producers: int, consumers: int) -> Stats:
        with self._lock:
            if self._unserved:
                self._serve()
            return Stats(
                len(self._items),
                self._nbytes,
                self._handed,
                self._accepted,
                self._delivered,
                self._lost,
                self._discarded,
                self._refused,
                producers,
                consumers,
                len(self._producers),
                len(self._consumers),
                self._closed,
            )

    # ----------------------------------------------------------------------------- lock is held

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"queue {self.name!r} is closed")

    def _fits(self, item: Item) -> bool:
        return (
            len(self._items) < self.capacity and self._nbytes + item.nbytes <= self.capacity_bytes
        )

    def _accept(self, ticket: RoomTicket) -> None:
        item = ticket.item
        unserved = self._unserved or bool(self._consumers)
        self._nbytes += item.nbytes
        self._accepted += 1
        self._unserved = unserved
        ticket.accepted = True
        self._items.append(item)

    def _accept_first(self, items: Sequence[Item]) -> int:
        """How many of them there was room for. Not by the main thread."""
        nbytes = self._nbytes
        count = 0
        for item in items[: max(self.capacity - len(self._items), 0)]:
            nbytes += item.nbytes
            if nbytes > self.capacity_bytes:
                nbytes -= item.nbytes
                break
            count += 1
        self._items.extend(items[:count])
        self._nbytes = nbytes
        self._accepted += count
        return count

    def _hand(self, ticket: ItemTicket, *, delivered: bool = False) -> None:
        """Nothing is leaving."""
        items = [*islice(self._items, ticket.most)]
        count = len(items)
        nbytes = self._nbytes - sum([item.nbytes for item in items])
        ticket.items = items
        ticket.delivered = delivered
        self._nbytes = nbytes
        if delivered:
            self._delivered += count
        else:
            self._handed += count
        self._unserved = True
        self._leaving = count
        self._leave()

    def _leave(self) -> None:
        items = self._items
        while self._leaving:
            self._leaving -= 1
            items.popleft()

    def _serve(self) -> None:
        """Serves tickets as far as there are items and room. One that is served already, and still
        in its line, was interrupted there."""
        self._unserved = True
        while True:
            if self._leaving:
                self._leave()
            if self._consumers and (self._items or self._consumers[0].items):
                consumer = self._consumers[0]
                if not consumer.items:
                    self._hand(consumer)
                consumer.wake()
                self._consumers.popleft()
            elif self._producers and (
                self._producers[0].accepted or self._fits(self._producers[0].item)
            ):
                producer = self._producers[0]
                if not producer.accepted:
                    self._accept(producer)
                producer.wake()
                self._producers.popleft()
            else:
                self._unserved = False
                return
