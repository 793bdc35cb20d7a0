# SPDX-License-Identifier: Apache-2.0
"""A queue in another process than its server's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from time import sleep
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from tensorwire import rpc
from tensorwire.queue import errors, items, wire
from tensorwire.queue.consuming import Consuming
from tensorwire.queue.conversation import ANSWER_SECONDS, ends, left, silent
from tensorwire.queue.encoded import MAX_SEGMENTS
from tensorwire.queue.local import checked_batch, checked_name, checked_whole
from tensorwire.queue.producing import Producing
from tensorwire.queue.serving import service_name
from tensorwire.rpc import lifetime
from tensorwire.tensors import DecodeError

if TYPE_CHECKING:
    from typing_extensions import Self

    from tensorwire.queue.store import Item, Stats
    from tensorwire.rpc import Channel, Peer
    from tensorwire.tensors import Framework

_MESSAGE_BYTES: Final = 1 << 20
"""Of a batch in one message, beyond its first item."""

_LOOK_SECONDS: Final = 0.02
"""How often it is looked for a link that takes longer."""

End = TypeVar("End", Producing, Consuming)


class QueueClient:
    """A queue of another process. ``connect`` makes it. Thread-safe.

    It belongs to one link: when that is lost, each wait ends with ServerLostError, and so does what
    is begun later; connect anew.
    """

    def __init__(
        self,
        peer: Peer,
        name: str,
        *,
        prefetch: int = 0,
        framework: Framework = "numpy",
        channel: Channel | None = None,
    ) -> None:
        """``connect`` is the way to make one."""
        self._peer = peer
        self._name = name
        self._prefetch = prefetch
        self._framework = framework
        self._generation = lifetime.generation()
        self._channel = channel  # its own
        self._service = f"/{service_name(name)}"
        self._stats: Callable[..., bytes] = peer.unary_unary(f"{self._service}/Stats")
        self._take_back: Callable[..., bytes] = peer.unary_unary(f"{self._service}/Withdraw")
        self._lock = threading.Lock()  # guards what follows
        self._producing: Producing | None = None
        self._consuming: Consuming | None = None
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    # ------------------------------------------------------------------------------------ put

    def put(self, obj: object, timeout: float | None = None) -> None:
        """Puts an object, which may be changed afterwards.

        It returns when the queue has the object, or when the server has said that there is room for
        it; then the object is on its way, and ``flush`` waits until the queue has it. With a queue
        that is full, or may be, it waits.

        timeout: seconds to wait for room; None: for ever, 0: not at all.

        Raises FullError, and the object is not in the queue; ClosedError; TooLargeError, at once,
        for an object larger than the queue's ``capacity_bytes``; ServerLostError, and objects that
        were not flushed may or may not be in the queue; TypeError and ValueError for what cannot
        travel.
        """
        producing = self._putting()
        item = items.encoded(obj, self._name, producing.capacity_bytes)
        if not producing.put_small(item):
            producing.put([item], timeout)

    def put_batch(self, objects: Iterable[object], timeout: float | None = None) -> None:
        """Puts objects in their order, small ones in one message. Each may be changed once the
        next one is asked for. Raises what ``put`` raises; ``accepted`` of a FullError is how many
        of them are in the queue, or on their way. Where one cannot travel, or ``objects`` raises,
        those before it are put."""
        producing = self._putting()
        end = ends(timeout)
        done = 0
        for batch in self._batches(objects, producing.capacity_bytes):
            try:
                producing.put(batch, left(end))
            except errors.FullError as error:
                error.accepted += done
                raise
            done += len(batch)

    async def put_async(self, obj: object, timeout: float | None = None) -> None:
        """As ``put``, in an event loop. An object whose ``put_async`` is cancelled while it waits
        for room is not in the queue, unless there was room just before: then the queue has it, and
        who puts it again doubles it."""
        producing = await self._ready(self._producing, self._putting)
        item = items.encoded(obj, self._name, producing.capacity_bytes)
        await producing.put_async([item], timeout)

    async def put_batch_async(
        self, objects: Iterable[object], timeout: float | None = None
    ) -> None:
        """As ``put_batch``, in an event loop."""
        producing = await self._ready(self._producing, self._putting)
        end = ends(timeout)
        done = 0
        for batch in self._batches(objects, producing.capacity_bytes):
            try:
                await producing.put_async(batch, left(end))
            except errors.FullError as error:
                error.accepted += done
                raise
            done += len(batch)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until the queue has all that was put. Raises FullError after ``timeout`` seconds,
        ClosedError, ServerLostError."""
        errors.check_process(self._generation, self._name)
        if self._producing is not None:
            self._producing.flush(timeout)

    async def flush_async(self, timeout: float | None = None) -> None:
        """As ``flush``, in an event loop."""
        errors.check_process(self._generation, self._name)
        if self._producing is not None:
            await self._producing.flush_async(timeout)

    def _batches(self, objects: Iterable[object], capacity_bytes: int) -> Iterator[list[Item]]:
        """An item that lies over the memory of its object leaves before the next object is made,
        which may be made there; those of a list exist already. What was collected leaves before an
        error of a later object."""
        made = isinstance(objects, (list, tuple))
        batch: list[Item] = []
        nbytes = segments = 0
        try:
            for obj in objects:
                item = items.encoded(obj, self._name, capacity_bytes)
                nbytes += item.nbytes
                segments += len(item.segments)
                full = nbytes > min(_MESSAGE_BYTES, capacity_bytes) or segments > MAX_SEGMENTS
                if batch and (full or len(batch) == wire.MAX_ITEMS):
                    yield batch
                    batch, nbytes, segments = [], item.nbytes, len(item.segments)
                batch.append(item)
                if item.nbytes > items.SMALL and not made:
                    yield batch
                    batch, nbytes, segments = [], 0, 0
        except Exception:
            if batch:
                yield batch
            raise
        if batch:
            yield batch

    # ------------------------------------------------------------------------------------ get

    def get(self, timeout: float | None = None) -> Any:
        """Takes the oldest object that no other consumer has been handed.

        timeout: seconds to wait for one; None: for ever, 0: not at all.

        Raises EmptyError; ClosedError once the queue is closed and empty; ServerLostError;
        ValueError for an item that is damaged, or has elements that the framework lacks: that one
        is gone.
        """
        return self._getting().get(1, timeout, self._decoded)[0]

    def get_batch(self, most: int, timeout: float | None = None) -> list[Any]:
        """Takes 1 to ``most`` objects: those that are there, or the first that comes. Raises what
        ``get`` raises, ValueError for the first one only; a later one begins the next batch."""
        return self._getting().get(checked_batch(most), timeout, self._decoded)

    async def get_async(self, timeout: float | None = None) -> Any:
        """As ``get``, in an event loop. A cancelled one loses no object: if one has come for it
        meanwhile, the next ``get`` takes it."""
        consuming = await self._ready(self._consuming, self._getting)
        return (await consuming.get_async(1, timeout, self._decoded))[0]

    async def get_batch_async(self, most: int, timeout: float | None = None) -> list[Any]:
        """As ``get_batch``, in an event loop."""
        consuming = await self._ready(self._consuming, self._getting)
        return await consuming.get_async(checked_batch(most), timeout, self._decoded)

    def _decoded(self, item: Item) -> Any:
        return items.decoded(item, self._framework)

    # ------------------------------------------------------------------------------------ all

    def stats(self) -> Stats:
        """Of the queue. Raises QueueError."""
        try:
            return wire.decode_stats(self._stats(b"", timeout=ANSWER_SECONDS))
        except rpc.CallError as error:
            raise errors.of_call(error, self._name) from None

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Closes this end. Others go on. Objects that have come and that nobody has taken go back
        to the queue.

        drain: waits until the queue has all that was put, at most ``timeout`` seconds. False: what
        is not there yet may be dropped.

        Raises what ``flush`` raises; this end is closed all the same. In a forked child it does
        nothing: this end is the parent's.
        """
        if lifetime.inherited(self._generation):
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            if self._producing is not None:
                self._producing.close(drain, timeout)
        finally:
            try:
                if self._consuming is not None:
                    self._consuming.close(ANSWER_SECONDS)
            finally:
                if self._channel is not None:
                    self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        try:
            self.close(drain=exc_type is None)
        except errors.QueueError:
            if exc_type is None:
                raise

    def __repr__(self) -> str:
        return f"<tensorwire.queue.QueueClient {self._name!r} at {self._peer.address}>"

    # ----------------------------------------------------------------------------- its streams

    async def _ready(self, end: End | None, make: Callable[[], End]) -> End:
        errors.check_process(self._generation, self._name)
        if end is None or self._closed:
            return await asyncio.to_thread(make)
        return end

    def _putting(self) -> Producing:
        errors.check_process(self._generation, self._name)
        producing = self._producing
        if producing is None or self._closed:
            with self._lock:
                self._check_open()
                if self._producing is None:
                    self._producing = self._begun(
                        lambda: Producing(
                            self._peer, self._name, f"{self._service}/Put", self._withdraw
                        )
                    )
                producing = self._producing
        return producing

    def _getting(self) -> Consuming:
        errors.check_process(self._generation, self._name)
        consuming = self._consuming
        if consuming is None or self._closed:
            with self._lock:
                self._check_open()
                if self._consuming is None:
                    self._consuming = self._begun(
                        lambda: Consuming(
                            self._peer,
                            self._name,
                            f"{self._service}/Get",
                            self._withdraw,
                            self._prefetch,
                        )
                    )
                consuming = self._consuming
        return consuming

    def _check_open(self) -> None:
        if self._closed:
            raise errors.end_closed(self._name)

    def _begun(self, begin: Callable[[], End]) -> End:
        try:
            return begin()
        except rpc.CallError as error:
            raise errors.of_call(error, self._name) from None

    def _withdraw(self, wanted: wire.Withdraw) -> int:
        try:
            answer = self._take_back(wire.encode(wanted), timeout=ANSWER_SECONDS)
            return wire.decode(wire.Withdrawn, answer).accepted
        except rpc.CallError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise silent(self._name) from None
            raise errors.of_call(error, self._name) from None
        except DecodeError as error:
            raise errors.QueueError(f"queue {self._name!r}: bad answer: {error}") from None


def connect(
    target: str | Channel,
    name: str,
    *,
    prefetch: int = 0,
    framework: Framework = "numpy",
    timeout: float | None = 20.0,
) -> QueueClient:
    """The queue ``name`` of a server.

    target: as for ``tensorwire.insecure_channel``, or a channel of tensorwire, which stays open
    when the client is closed.

    prefetch: how many items are asked for ahead of ``get``. Items that were handed to a process
    count as lost when it dies, whether its program has taken them or not; so with 0 it has at most
    those that it has asked for.

    framework: of the arrays that ``get`` gives, as for ``tensors.loads``.

    timeout: seconds to wait for a link; None: for ever.

    Raises ServerLostError where no link leads to the server, with the reason; NoQueueError;
    ValueError and TypeError for arguments that are none, ImportError for a framework that is not
    there.
    """
    checked_name(name)
    items.checked_framework(framework)
    prefetch = checked_whole(prefetch, "prefetch")
    if not 0 <= prefetch <= wire.MAX_ITEMS:
        raise ValueError(f"prefetch is 0 to {wire.MAX_ITEMS}, not {prefetch}")
    own = rpc.insecure_channel(target) if isinstance(target, str) else None
    channel: Any = own or target
    try:
        peer = _peer(channel, name, timeout)
        client = QueueClient(peer, name, prefetch=prefetch, framework=framework, channel=own)
        client.stats()  # whether it is there
    except BaseException:
        if own is not None:
            own.close()
        raise
    return client


def _peer(channel: Channel, name: str, timeout: float | None) -> Peer:
    """Raises ServerLostError."""
    end = ends(timeout)
    while True:
        peer = channel.peer()  # it waits for a second at most
        if peer is not None:
            return peer
        if channel.stats()["transport"] is not None or left(end) == 0.0:
            raise errors.ServerLostError(
                f"queue {name!r} is reached over a link of tensorwire only, and there is none: "
                f"{channel.path()}"
            )
        sleep(_LOOK_SECONDS)
