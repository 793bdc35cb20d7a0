# SPDX-License-Identifier: Apache-2.0
"""A queue's methods, which its clients call: a stream to put, one to get, and two short ones.

Each stream has a thread of the server's process, which waits for that client only.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any, Final

import grpc

from tensorwire import rpc
from tensorwire.queue import wire
from tensorwire.queue.encoded import first_fitting
from tensorwire.queue.errors import ClosedError
from tensorwire.queue.store import WATCH, Item, ItemTicket, Stats, Store
from tensorwire.rpc import lifetime
from tensorwire.rpc.grpc_internals import POOL
from tensorwire.rpc.serving.context import CallContext
from tensorwire.rpc.serving.dispatch import PoolFullError
from tensorwire.tensors import DecodeError

if TYPE_CHECKING:
    from tensorwire._core import Buffer
    from tensorwire.rpc import Peer

STREAMS_OF_A_PEER: Final = 64
"""At one queue."""
MAX_STREAMS: Final = 4096
_LOOK_SECONDS: Final = 0.25
"""How often a stream that waits in the queue looks whether its client is still there."""
_WITHDRAW_SECONDS: Final = 1.0
"""So long a withdrawal waits for a stream that is held up by items before the withdrawn ones."""
_ANSWER_BYTES: Final = 4 << 20
"""Of items in one answer, beyond its first one."""

Segments = list["Buffer"]


def service_name(name: str) -> str:
    return f"tensorwire.queue.{name}"


class _Threads(futures.Executor):
    """A thread for each call. The server's own pool stays free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        lifetime.close_at_exit(self)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """Raises PoolFullError."""
        future: futures.Future[Any] = futures.Future()

        def run() -> None:
            try:
                future.set_result(function(*arguments, **named))
            except BaseException as error:
                future.set_exception(error)
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=run, name="tensorwire-queue", daemon=True)
        with self._lock:
            if len(self._threads) >= MAX_STREAMS:
                raise PoolFullError(f"the queue serves {MAX_STREAMS} calls at once, and has them")
            self._threads.add(thread)
        try:
            lifetime.start(thread)
        except BaseException:
            with self._lock:
                self._threads.discard(thread)
            raise
        return future

    def close_at_exit(self) -> None:
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(lifetime.JOIN_SECONDS)


class _Session:
    """A stream of a client that puts, or of one that gets."""

    def __init__(self, context: CallContext, peer: Peer) -> None:
        self.context: Final = context
        self.peer: Final = peer
        self.number: Final = secrets.randbits(62)
        self.woken: Final = threading.Event()
        self.lock: Final = threading.RLock()  # guards what follows
        self.changed: Final = threading.Condition(self.lock)
        self.processed = 0
        """Of one that puts: the last item that is settled. Of one that gets: the last question."""
        self.impatient = range(0)
        """Items or questions that do not wait any more."""
        self.refusing = False
        """Those are refused without a look."""
        self.refused: set[int] = set()

    def wait(self) -> bool:
        """Until it is woken, or for a while. False: the client is gone."""
        self.woken.wait(_LOOK_SECONDS)
        return self.context.is_active()

    def hurries(self, number: int) -> bool:
        return number in self.impatient


class Service:
    """Serves one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()  # guards what follows
        self._producers: dict[int, _Session] = {}
        self._consumers: dict[int, _Session] = {}
        WATCH.members.get().add(self)

    def handler(self) -> grpc.GenericRpcHandler:
        threads = _Threads()

        def bound(function: Callable[..., Any]) -> Callable[..., Any]:
            def behavior(request: Any, context: Any) -> Any:
                return function(request, context)

            setattr(behavior, POOL, threads)
            return behavior

        stream: dict[str, Any] = {"request_deserializer": rpc.segments(_as_they_are)}
        return grpc.method_handlers_generic_handler(
            service_name(self._store.name),
            {
                "Put": grpc.stream_stream_rpc_method_handler(bound(self._put), **stream),
                "Get": grpc.stream_stream_rpc_method_handler(bound(self._get), **stream),
                "Withdraw": grpc.unary_unary_rpc_method_handler(bound(self._withdraw)),
                "Stats": grpc.unary_unary_rpc_method_handler(bound(self._stats)),
            },
        )

    @property
    def name(self) -> str:
        return self._store.name

    def stats(self) -> Stats:
        with self._lock:
            producers, consumers = len(self._producers), len(self._consumers)
        return self._store.stats(producers, consumers)

    def close(self) -> None:
        """Once the store is closed: ends the streams that put, which may wait for their clients."""
        with self._lock:
            sessions = list(self._producers.values())
        for session in sessions:
            session.context.end(grpc.StatusCode.FAILED_PRECONDITION, self._closed())

    def _closed(self) -> str:
        return "the queue is closed"

    @contextlib.contextmanager
    def _session(self, context: CallContext, sessions: dict[int, _Session]) -> Iterator[_Session]:
        peer = rpc.peer_of(context)
        if peer is None:
            context.abort(
                grpc.StatusCode.UNAVAILABLE,
                "a queue is reached over shared memory, RDMA or TCP, and this call came by gRPC",
            )
        session = _Session(context, peer)
        with self._lock:
            both = itertools.chain(self._producers.values(), self._consumers.values())
            crowded = sum(other.peer == peer for other in both) >= STREAMS_OF_A_PEER
            if not crowded:
                sessions[session.number] = session
        if crowded:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"this process has {STREAMS_OF_A_PEER} streams at the queue: let it share a client",
            )
        context.add_callback(session.woken.set)
        try:
            yield session
        except ClosedError:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self._closed())
        except DecodeError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            with self._lock:
                del sessions[session.number]

    def _opened(self, session: _Session) -> list[bytes]:
        store = self._store
        limits = (store.capacity, store.capacity_bytes)
        return [wire.encode(wire.Opened(session.number, *limits, *store.room()))]

    # -------------------------------------------------------------------------- a client puts

    def _put(self, requests: Iterator[Segments], context: CallContext) -> Iterator[list[bytes]]:
        store = self._store
        with self._session(context, self._producers) as session:
            yield self._opened(session)
            received = 0
            for segments in requests:
                put = wire.decode(wire.Put, segments[0] if segments else b"")
                items = wire.split(put, segments)
                if not session.impatient:
                    done = store.offer_now(items)
                    received += done
                    del items[:done]
                    self._processed(session, received)
                for item in items:
                    received += 1
                    if not self._accept(session, received, item):
                        return
                segments = items = item = None  # type: ignore[assignment]  # nothing is held
                if put.ask:
                    yield [wire.encode(wire.Settled(received, *store.room()))]

    def _accept(self, session: _Session, number: int, item: Item) -> bool:
        """Puts the item into the queue, or refuses it when it was withdrawn. False: the client is
        gone, and so is the item. Raises ClosedError."""
        if session.refusing and session.hurries(number):
            self._store.refuse()
            self._processed(session, number, refused=True)
            return True
        if item.nbytes > self._store.capacity_bytes:
            raise DecodeError(f"an item of {item.nbytes} bytes never fits")
        ticket = self._store.offer(item, session.woken.set)
        refused = False
        if ticket is not None:
            while not self._store.settled(ticket):
                gone = not session.context.is_active()
                if gone or session.hurries(number):
                    refused = self._store.withdraw(ticket)
                    if gone and refused:
                        return False
                    break
                session.wait()
                session.woken.clear()
        self._processed(session, number, refused)
        return True

    def _processed(self, session: _Session, number: int, refused: bool = False) -> None:
        if not refused:
            session.processed = (
                number  # before the look: who waits sets ``impatient`` before its own
            )
            if not session.impatient:
                return
        with session.lock:
            if refused:
                session.refused.add(number)
            session.processed = number
            session.changed.notify_all()

    # -------------------------------------------------------------------------- a client gets

    def _get(self, requests: Iterator[Segments], context: CallContext) -> Iterator[Sequence[Any]]:
        store = self._store
        handed: list[Item] = []  # and not known to have been taken
        came = 0  # all that were sent to the client
        with self._session(context, self._consumers) as session:
            try:
                yield self._opened(session)
                for segments in requests:
                    ask = wire.decode(wire.Ask, segments[0] if segments else b"")
                    taken = ask.taken - (came - len(handed))
                    if not 0 <= taken <= len(handed):
                        raise DecodeError(f"{ask.taken} items taken of {came}")
                    store.confirm(taken)
                    del handed[:taken]
                    if ask.most == 0:
                        continue
                    unconfirmed = sum([item.nbytes for item in handed])
                    if len(handed) > 2 * wire.MAX_ITEMS or unconfirmed > 4 * store.capacity_bytes:
                        raise DecodeError("it asks for more and more, and takes nothing")
                    try:
                        items = self._hand(session, ask)
                    except ClosedError:
                        if not handed:
                            raise
                        items = []  # first its program takes those
                    handed += items
                    came += len(items)
                    yield wire.items_message(items)
                    items = []
                store.give_back(handed)  # it has said which ones it has taken
                handed = []
            finally:
                store.lose(len(handed))

    def _hand(self, session: _Session, ask: wire.Ask) -> list[Item]:
        """For an answer; none when the question was withdrawn. Raises ClosedError."""
        store = self._store
        ticket = store.take(min(ask.most, wire.MAX_ITEMS), session.woken.set)
        while not store.check(ticket):
            if not session.context.is_active() or session.hurries(ask.number):
                if store.cancel(ticket):
                    return []
                continue
            session.wait()
            session.woken.clear()
        return self._fitting(session, ticket)

    def _fitting(self, session: _Session, ticket: ItemTicket) -> list[Item]:
        """The items that go into one answer; the others go back."""
        items = ticket.items
        if not session.context.is_active():
            self._store.give_back(items)  # it has not seen them
            return []
        count = first_fitting(items, _ANSWER_BYTES)
        if count < len(items):
            self._store.give_back(items[count:])
        return items[:count]

    # ----------------------------------------------------------------------------- short calls

    def _withdraw(self, request: bytes, context: CallContext) -> bytes:
        try:
            wanted = wire.decode(wire.Withdraw, request)
        except DecodeError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        with self._lock:
            puts = self._producers.get(wanted.session)
            session = puts or self._consumers.get(wanted.session)
        if session is None or session.peer != rpc.peer_of(context):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the stream has ended")
        numbers = range(wanted.first, wanted.last + 1)
        if wanted.last - wanted.first >= wire.MAX_ITEMS:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{wanted.last - wanted.first + 1} items withdrawn: at most {wire.MAX_ITEMS}",
            )
        with session.lock:
            session.refused = {number for number in session.refused if number in numbers}
            session.impatient, session.refusing = numbers, False
            session.woken.set()
            if puts is None:
                return wire.encode(wire.Withdrawn(0))
            session.changed.notify_all()  # an earlier one that waits leaves its thread
            session.changed.wait_for(
                lambda: (
                    session.processed >= wanted.last
                    or session.impatient is not numbers
                    or not session.context.is_active()
                ),
                _WITHDRAW_SECONDS,
            )
            if session.impatient is not numbers:
                context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, "another withdrawal has come for the stream"
                )
            done = session.processed
            session.refusing = True
            return wire.encode(
                wire.Withdrawn(
                    max(min(done, wanted.last) - wanted.first + 1, 0) - len(session.refused)
                )
            )

    def _stats(self, request: bytes, context: CallContext) -> bytes:
        return wire.encode(self.stats())


def _as_they_are(segments: Segments) -> Segments:
    return segments
