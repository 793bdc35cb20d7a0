# SPDX-License-Identifier: Apache-2.0
"""A queue in the process of its server."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from tensorwire.queue import items
from tensorwire.queue.conversation import ends, left
from tensorwire.queue.errors import EmptyError, FullError, check_process
from tensorwire.queue.serving import Service
from tensorwire.queue.store import ItemTicket, Stats, Store
from tensorwire.queue.wire import MAX_ITEMS
from tensorwire.rpc import Server, lifetime
from tensorwire.rpc.waiting import News, wait

if TYPE_CHECKING:
    from typing_extensions import Self

    from tensorwire.queue.store import Item, RoomTicket
    from tensorwire.tensors import Framework

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_MAX_BYTES: Final = (1 << 62) - 1
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
        event = threading.Event()
        end = ends(timeout)
        ticket = self._offer(obj, event.set)
        if ticket is None:
            return
        try:
            while not self._store.settled(ticket):
                if not wait(event, left(end)) and self._store.withdraw(ticket):
                    raise self._full(timeout)
        except BaseException:
            self._store.withdraw(ticket)
            raise

    def put_batch(self, objects: Iterable[object], timeout: float | None = None) -> None:
        """Puts objects in their order. Raises what ``put`` raises; ``accepted`` of a FullError is
        how many of them are in the queue."""
        end = ends(timeout)
        accepted = 0
        try:
            for obj in objects:
                self.put(obj, left(end))
                accepted += 1
        except FullError:
            raise self._full(timeout, accepted) from None

    async def put_async(self, obj: object, timeout: float | None = None) -> None:
        """As ``put``, in an event loop. A cancelled one has not put its object."""
        news = News()
        end = ends(timeout)
        ticket = self._offer(obj, news.wake)
        if ticket is None:
            return
        try:
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

    def _offer(self, obj: object, wake: Callable[[], object]) -> RoomTicket | None:
        check_process(self._generation, self.name)
        item = items.encoded(obj, self.name, self._store.capacity_bytes)
        return self._store.offer(items.kept(item), wake)

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
        item = self._store.take_first() or self._take(1, timeout)[0]
        return items.decoded(item, self._framework)

    def get_batch(self, most: int, timeout: float | None = None) -> list[Any]:
        """Takes 1 to ``most`` objects: those that are there, or the first that comes. Raises what
        ``get`` raises, ValueError for the first one only; a later one begins the next batch."""
        return self._decoded_batch(self._take(most, timeout))

    async def get_async(self, timeout: float | None = None) -> Any:
        """As ``get``, in an event loop. A cancelled one takes no object."""
        return self._decoded((await self._take_async(1, timeout))[0])

    async def get_batch_async(self, most: int, timeout: float | None = None) -> list[Any]:
        """As ``get_batch``, in an event loop."""
        return self._decoded_batch(await self._take_async(most, timeout))

    def _take(self, most: int, timeout: float | None) -> list[Item]:
        check_process(self._generation, self.name)
        most = checked_batch(most)
        if found := self._store.take_now(most):
            return found
        event = threading.Event()
        ticket = self._store.take(most, event.set)
        if not ticket.items:
            end = ends(timeout)
            try:
                while not self._store.check(ticket):
                    if not wait(event, left(end)) and self._store.cancel(ticket):
                        raise self._empty(timeout)
            except BaseException:
                self._forgo(ticket)
                raise
        self._store.confirm(len(ticket.items))
        return ticket.items

    async def _take_async(self, most: int, timeout: float | None) -> list[Item]:
        check_process(self._generation, self.name)
        most = checked_batch(most)
        if found := self._store.take_now(most):
            return found
        news = News()
        ticket = self._store.take(most, news.wake)
        if not ticket.items:
            end = ends(timeout)
            try:
                while not self._store.check(ticket):
                    if not await news.wait(left(end)) and self._store.cancel(ticket):
                        raise self._empty(timeout)
            except BaseException:
                self._forgo(ticket)
                raise
        self._store.confirm(len(ticket.items))
        return ticket.items

    def _forgo(self, ticket: ItemTicket) -> None:
        if not self._store.cancel(ticket):
            self._store.give_back(ticket.items)

    def _empty(self, timeout: float | None) -> EmptyError:
        return EmptyError(f"queue {self.name!r} had no item within {timeout or 0:g} s")

    def _decoded(self, item: Item) -> Any:
        return items.decoded(item, self._framework)

    def _decoded_batch(self, batch: list[Item]) -> list[Any]:
        """Those before the first that cannot be decoded; the others stay for the next ``get``."""
        found: list[Any] = []
        try:
            for item in batch:
                found += [self._decoded(item)]
        except Exception:
            self._store.undeliver(batch[len(found) or 1 :])
            if not found:
                raise
        return found

    # ------------------------------------------------------------------------------------ all

    def stats(self) -> Stats:
        return self._service.stats()

    def close(self, drain: bool = True) -> None:
        """Takes no more objects, for ever: who puts gets a ClosedError, also who waits for room.

        drain: objects that are in the queue can still be taken, and then who gets has a
        ClosedError. False: they are discarded.
        """
        self._store.close(drain)
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        self.close(drain=exc_type is None)

    def __repr__(self) -> str:
        stats = self.stats()
        return f"<tensorwire.queue.Queue {self.name!r}: {stats.items} items, {stats.nbytes} bytes>"


def checked_batch(most: int) -> int:
    if most < 1:
        raise ValueError(f"a batch has at least one item, not {most}")
    return min(most, MAX_ITEMS)


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
    if capacity < 1 or not 1 <= capacity_bytes <= _MAX_BYTES:
        raise ValueError("a queue has room for at least one item and one byte")
    items.checked_framework(framework)
    checked_name(name)
    with _lock:
        names = _names.setdefault(server, set())
        if name in names:
            raise ValueError(f"the server has had a queue {name!r}: give each a name of its own")
        names.add(name)
    return Queue(server, name, capacity, capacity_bytes, framework)
