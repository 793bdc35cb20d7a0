# SPDX-License-Identifier: Apache-2.0
"""A queue in the process of its server."""

from __future__ import annotations

import operator
import re
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tensorwire.queue import items
from tensorwire.queue.conversation import ends, left
from tensorwire.queue.errors import EmptyError, FullError, check_process
from tensorwire.queue.serving import Service
from tensorwire.queue.store import ItemTicket, RoomTicket, Stats, Store
from tensorwire.queue.wire import MAX_ITEMS
from tensorwire.rpc import Server, lifetime
from tensorwire.rpc.waiting import Bell, News

if TYPE_CHECKING:
    from typing_extensions import Self

    from tensorwire.tensors import Framework

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_MAX_CAPACITY: Final = (1 << 62) - 1
"""Items, and bytes: messages have room for twice as much."""
_names: Final[weakref.WeakKeyDictionary[Server, set[str]]] = weakref.WeakKeyDictionary()
_lock: Final = threading.Lock()  # of those


class Queue:
    """A bounded queue. ``serve`` makes it; other processes ``connect`` to it. Thread-safe.

    An object of a queue is what ``tensors.dumps`` takes: arrays and tensors of NumPy, PyTorch,
    TensorFlow and JAX, numbers, str, bytes, None, and dicts, lists and tuples of them. A named
    tuple comes out as a tuple. Nothing is pickled. Arrays that come out are read-only.
    """

    def __init__(
        self,
        server: Server,
        name: str,
        capacity: int,
        capacity_bytes: int,
        framework: Framework = "numpy",
    ) -> None:
        """``serve`` is the way to make one."""
        self._framework = framework
        self._generation = lifetime.generation()
        self._store = Store(name, capacity, capacity_bytes)
        self._service = Service(self._store)
        server.add_generic_rpc_handlers((self._service.handler(),))

    @property
    def name(self) -> str:
        return self._store.name

    # ------------------------------------------------------------------------------------ put

    def put(self, obj: object, timeout: float | None = None) -> None:
        """Puts an object, which is copied unless its arrays were published, and may be changed
        afterwards.

        timeout: seconds to wait for room; None: for ever, 0: not at all.

        Raises FullError, and the object is not in the queue; ClosedError; TooLargeError, at once,
        for an object larger than the queue's ``capacity_bytes``; TypeError and ValueError for what
        cannot travel.
        """
        ticket = self._ticket(obj)
        try:
            self._put(ticket, timeout)
        except BaseException:  # Ctrl-C, too: what the queue has not taken it never takes
            self._store.withdraw(ticket)
            raise

    def _put(self, ticket: RoomTicket, timeout: float | None) -> None:
        end = ends(timeout)
        bell = Bell()
        ticket.wake = bell.ring
        if self._store.enter(ticket):
            return
        while not self._store.settled(ticket):
            if not bell.wait(left(end)) and self._store.withdraw(ticket):
                raise self._full(timeout)

    def put_batch(self, objects: Iterable[object], timeout: float | None = None) -> None:
        """Puts objects in their order. Raises what ``put`` raises; ``accepted`` of a FullError is
        how many of them are in the queue. Where one cannot travel, or ``objects`` raises, those
        before it are put."""
        end = ends(timeout)
        accepted = 0
        try:
            for obj in objects:
                self.put(obj, left(end))
                accepted += 1
        except FullError:
            raise self._full(timeout, accepted) from None

    async def put_async(self, obj: object, timeout: float | None = None) -> None:
        """As ``put``, in an event loop. A cancelled one has not put its object, unless there was
        room just before: then the queue has it, and who puts it again doubles it."""
        ticket = self._ticket(obj)
        try:
            end = ends(timeout)
            news = News()
            ticket.wake = news.wake
            if self._store.enter(ticket):
                return
            while not self._store.settled(ticket):
                if not await news.wait(left(end)) and self._store.withdraw(ticket):
                    raise self._full(timeout)
        except BaseException:
            self._store.withdraw(ticket)
            raise

    async def put_batch_async(
        self, objects: Iterable[object], timeout: float | None = None
    ) -> None:
        """As ``put_batch``, in an event loop."""
        end = ends(timeout)
        accepted = 0
        try:
            for obj in objects:
                await self.put_async(obj, left(end))
                accepted += 1
        except FullError:
            raise self._full(timeout, accepted) from None

    def _ticket(self, obj: object) -> RoomTicket:
        check_process(self._generation, self.name)
        item = items.encoded(obj, self.name, self._store.capacity_bytes)
        return RoomTicket(items.kept(item))

    def _full(self, timeout: float | None, accepted: int = 0) -> FullError:
        return FullError(f"queue {self.name!r} had no room within {timeout or 0:g} s", accepted)

    # ------------------------------------------------------------------------------------ get

    def get(self, timeout: float | None = None) -> Any:
        """Takes the oldest object.

        timeout: seconds to wait for one; None: for ever, 0: not at all.

        Raises EmptyError; ClosedError once the queue is closed and empty; ValueError for an item
        that is damaged, or has elements that the framework lacks: that one is gone.
        """
        check_process(self._generation, self.name)
        ticket = ItemTicket(1)
        try:
            if not self._store.take_first(ticket):
                self._take(ticket, timeout)
            return self._decoded(ticket)
        except BaseException:  # Ctrl-C, too: the next one gets it
            self._store.forgo(ticket)
            raise

    def get_batch(self, most: int, timeout: float | None = None) -> list[Any]:
        """Takes 1 to ``most`` objects: those that are there, or the first that comes. Raises what
        ``get`` raises, ValueError for the first one only; a later one begins the next batch."""
        check_process(self._generation, self.name)
        ticket = ItemTicket(checked_batch(most))
        try:
            if not self._store.take_now(ticket):
                self._take(ticket, timeout)
            return self._decoded_batch(ticket)
        except BaseException:
            self._store.forgo(ticket)
            raise

    async def get_async(self, timeout: float | None = None) -> Any:
        """As ``get``, in an event loop. A cancelled one takes no object."""
        check_process(self._generation, self.name)
        ticket = ItemTicket(1)
        try:
            if not self._store.take_first(ticket):
                await self._take_async(ticket, timeout)
            return self._decoded(ticket)
        except BaseException:
            self._store.forgo(ticket)
            raise

    async def get_batch_async(self, most: int, timeout: float | None = None) -> list[Any]:
        """As ``get_batch``, in an event loop."""
        check_process(self._generation, self.name)
        ticket = ItemTicket(checked_batch(most))
        try:
            if not self._store.take_now(ticket):
                await self._take_async(ticket, timeout)
            return self._decoded_batch(ticket)
        except BaseException:
            self._store.forgo(ticket)
            raise

    def _take(self, ticket: ItemTicket, timeout: float | None) -> None:
        """Waits until it has items."""
        end = ends(timeout)
        bell = Bell()
        ticket.wake = bell.ring
        self._store.wait(ticket)
        while not self._store.check(ticket):
            if not bell.wait(left(end)) and self._store.cancel(ticket):
                raise self._empty(timeout)
        self._store.deliver(ticket)

    async def _take_async(self, ticket: ItemTicket, timeout: float | None) -> None:
        end = ends(timeout)
        news = News()
        ticket.wake = news.wake
        self._store.wait(ticket)
        while not self._store.check(ticket):
            if not await news.wait(left(end)) and self._store.cancel(ticket):
                raise self._empty(timeout)
        self._store.deliver(ticket)

    def _empty(self, timeout: float | None) -> EmptyError:
        return EmptyError(f"queue {self.name!r} had no item within {timeout or 0:g} s")

    def _decoded(self, ticket: ItemTicket) -> Any:
        """Its only item, which is gone when it cannot be decoded."""
        try:
            return items.decoded(ticket.items[0], self._framework)
        except Exception:
            ticket.items = []
            raise

    def _decoded_batch(self, ticket: ItemTicket) -> list[Any]:
        """Those before the first that cannot be decoded; the others stay for the next ``get``."""
        found: list[Any] = []
        try:
            for item in ticket.items:
                found += [items.decoded(item, self._framework)]
        except Exception:
            self._store.forgo(ticket, len(found) or 1)
            if not found:
                ticket.items = []
                raise
        return found

    # ------------------------------------------------------------------------------------ all

    def stats(self) -> Stats:
        return self._service.stats()

    def close(self, drain: bool = True) -> None:
        """Takes no more objects, for ever: who puts gets a ClosedError, also who waits for room.

        drain: objects that are in the queue can still be taken, and then who gets has a
        ClosedError. False: they are discarded.

        In a forked child it does nothing: the queue is the parent's.
        """
        if lifetime.inherited(self._generation):
            return
        self._store.close(drain)
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        self.close(drain=exc_type is None)

    def __repr__(self) -> str:
        stats = self.stats()
        return f"<tensorwire.queue.Queue {self.name!r}: {stats.items} items, {stats.nbytes} bytes>"


def checked_whole(number: int, what: str) -> int:
    """As an int. Raises TypeError for what is no whole number: a peer, or the queue itself, would
    fail with it later."""
    if not isinstance(number, bool):
        with suppress(TypeError):
            return operator.index(number)
    raise TypeError(f"{what} is a whole number, not {number!r}")


def checked_batch(most: int) -> int:
    most = checked_whole(most, "the most that a batch may have")
    if most < 1:
        raise ValueError(f"a batch has at least one item, not {most}")
    return min(most, MAX_ITEMS)


def _checked_capacity(number: int, what: str) -> int:
    number = checked_whole(number, what)
    if not 1 <= number <= _MAX_CAPACITY:
        raise ValueError(f"{what} is 1 to {_MAX_CAPACITY}, not {number}")
    return number


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a queue's name has 1 to 128 letters, digits, dots, hyphens and underscores, and "
            f"begins with none of the marks: not {name!r}"
        )
    return name


def serve(
    server: Server,
    name: str,
    *,
    capacity: int,
    capacity_bytes: int,
    framework: Framework = "numpy",
) -> Queue:
    """A queue that processes which can reach ``server`` may put to and get from, and this process
    directly.

    server: of ``tensorwire.server``; before its start or after. Each stream of a client has a
    thread of its own; the server's pool stays free. name: none of its queues has had it, also of
    those that are closed. capacity: how many items may be in the queue; capacity_bytes: how many
    bytes they may have, with headers. framework: of the arrays that ``get`` gives, as for
    ``tensors.loads``.

    Raises ValueError and TypeError for arguments that are none, ImportError for a framework that is
    not there.
    """
    if not isinstance(server, Server):
        raise TypeError(f"a queue needs a server of tensorwire.server, not a {type(server)}")
    capacity = _checked_capacity(capacity, "a queue's capacity")
    capacity_bytes = _checked_capacity(capacity_bytes, "a queue's capacity_bytes")
    items.checked_framework(framework)
    checked_name(name)
    with _lock:
        names = _names.setdefault(server, set())
        if name in names:
            raise ValueError(f"the server has had a queue {name!r}: give each a name of its own")
        names.add(name)
    return Queue(server, name, capacity, capacity_bytes, framework)
