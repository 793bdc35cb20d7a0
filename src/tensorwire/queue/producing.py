# SPDX-License-Identifier: Apache-2.0
"""The end of a queue's stream at a client that puts.

Items are sent without waiting for an answer, as long as the server has said that there is room for
them, small ones of a burst together; what it has settled it says in groups, when it is asked. An
item for which there may be no room waits at the server for its turn, and its ``put`` for the
server's word.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final
from weakref import ref

from tensorwire.queue import wire
from tensorwire.queue.conversation import (
    ANSWER_SECONDS,
    Conversation,
    ends,
    in_thread,
    left,
    silent,
)
from tensorwire.queue.encoded import MAX_SEGMENTS, segments_of
from tensorwire.queue.errors import FullError, QueueError, end_closed
from tensorwire.queue.items import SMALL
from tensorwire.rpc import lifetime
from tensorwire.rpc.turn import Turn

if TYPE_CHECKING:
    from tensorwire._core import Buffer
    from tensorwire.queue.store import Item
    from tensorwire.rpc import Peer

Withdraw = Callable[[wire.Withdraw], int]
_BURST_SECONDS: Final = 2e-4
"""Items that follow each other faster than that go together."""
_BATCH_ITEMS: Final = 256
_BATCH_BYTES: Final = 256 << 10
_SWEEP_SECONDS: Final = 5e-4
"""So long an item waits at most for others that it goes with."""
_IDLE_SWEEPS: Final = 200
_SETTLE_SECONDS: Final = 1.0
"""So long the server's word is waited for that goes with the answer to a withdrawal."""
_LAST_SECONDS: Final = 1.0
_QUICK: Final = 64 << 10
"""Bytes that are sent within an event loop, as far as the stream has credit for them."""


class _LastFlush:
    """Once the main thread has ended, while links are still there: a program that does not close
    its client has meant what it has put."""

    def __init__(self, producing: Producing) -> None:
        self._producing = ref(producing)

    def close_at_exit(self) -> None:
        producing = self._producing()
        if producing is not None:
            with suppress(QueueError):
                producing.flush(_LAST_SECONDS)


class Producing:
    """Thread-safe."""

    def __init__(self, peer: Peer, name: str, method: str, withdraw: Withdraw) -> None:
        """Waits for the server's first word. Raises QueueError."""
        self._name = name
        self._withdraw = withdraw
        self._turn = Turn()  # to send; one message at most waits for room
        self._opened: wire.Opened | None = None
        self.capacity_bytes = 0
        self._sent = self._sent_bytes = 0
        self._asked = 0  # the last item that the server was asked about
        self._settled = self._settled_bytes = 0
        self._pending: list[Item] = []  # put, but not sent yet
        self._pending_bytes = 0
        self._passed = 0.0  # when the last item came
        self._sweeping = self._ending = False
        self._closing = False  # nothing is put any more
        self._sweeper: threading.Thread | None = None
        # Of what is not settled, its number, and the bytes of all up to it.
        self._totals: deque[tuple[int, int]] = deque()
        self._room = self._room_bytes = 0
        self._talk = Conversation(peer.duplex(method), name, self._hear)
        if not self._talk.until(lambda: self._opened is not None, ANSWER_SECONDS):
            self._talk.cancel()
            raise silent(name)
        self._last_flush = _LastFlush(self)
        lifetime.close_at_exit(self._last_flush, server=True)
        lifetime.close_at_exit(self)

    # --------------------------------------------------------------------- what the server says

    def _hear(self, message: list[Buffer], number: int) -> None:
        control = message[0] if message else b""
        if number == 0:
            opened = self._opened = wire.decode(wire.Opened, control)
            self.capacity_bytes = opened.capacity_bytes
            self._room, self._room_bytes = opened.room, opened.room_bytes
            return
        settled = wire.decode(wire.Settled, control)
        count = min(settled.count, self._sent)
        while self._totals and self._totals[0][0] <= count:
            self._settled, self._settled_bytes = self._totals[0]
            self._totals.popleft()
        self._room, self._room_bytes = settled.room, settled.room_bytes

    def _covered(self) -> bool:
        """Whether there was room for all that is under way when the server last spoke."""
        return (
            self._sent + len(self._pending) - self._settled <= self._room
            and self._sent_bytes + self._pending_bytes - self._settled_bytes <= self._room_bytes
        )

    def _all_settled(self) -> bool:
        return self._settled == self._sent and not self._pending

    # -------------------------------------------------------------------------------- sending

    def _pass(self, items: Sequence[Item], timeout: float | None) -> None:
        """The turn is held. Sends the items, and what waits to be sent before them; or leaves small
        ones to others that follow, or to the thread."""
        now = monotonic()
        many = now - self._passed < _BURST_SECONDS
        self._passed = now
        sizes = [item.nbytes for item in items]
        nbytes = sum(sizes)
        if many and max(sizes) <= SMALL and self._may_wait(len(items), nbytes):
            self._pending += items
            self._pending_bytes += nbytes
            if not self._sweeping:
                self._sweep()
            return
        together = self._pending_bytes + nbytes
        if together > MAX_SEGMENTS and segments_of([*self._pending, *items]) > MAX_SEGMENTS:
            self._send(self._pending, timeout)
        self._send([*self._pending, *items], timeout)

    def _may_wait(self, count: int, nbytes: int) -> bool:
        """Whether so many items more may wait for others: they fill no message, and there is room
        for all."""
        count += len(self._pending)
        nbytes += self._pending_bytes
        return (
            count < _BATCH_ITEMS
            and nbytes < _BATCH_BYTES
            and self._sent + count - self._settled <= self._room
            and self._sent_bytes + nbytes - self._settled_bytes <= self._room_bytes
        )

    def _send(self, items: list[Item], timeout: float | None) -> None:
        """All that waits to be sent, and maybe more, in one message; it asks the server when it is
        time."""
        while self._totals and self._totals[-1][0] > self._sent:
            self._totals.pop()  # of what did not leave
        before = (self._sent, self._sent_bytes)
        nbytes = accumulate([item.nbytes for item in items], initial=self._sent_bytes)
        totals = list(enumerate(nbytes, self._sent))
        sent: deque[bool] = deque()
        try:
            # First these: another thread may hear of items before this one goes on.
            self._sent, self._sent_bytes = totals[-1]
            self._totals.extend(totals[1:])
            ask = (
                self._sent - self._settled > self._room
                or self._sent_bytes - self._settled_bytes > self._room_bytes
                or (self._sent - self._asked) * 2 >= self._room
                or (self._sent_bytes - self._settled_bytes) * 2 >= self._room_bytes
            )
            self._talk.send(wire.put_message(items, ask), timeout, sent)
        finally:
            if sent and sent[-1]:
                self._pending, self._pending_bytes = [], 0
                self._asked = self._sent if ask else self._asked
            else:  # what waited still does
                self._sent, self._sent_bytes = before

    def _ask(self, timeout: float | None) -> None:
        """Sends what waits to be sent. Afterwards the server will say when all of it is settled."""
        if self._pending:
            self._send(self._pending, timeout)
        if self._asked < self._sent:
            self._talk.send(wire.put_message((), True), timeout)
            self._asked = self._sent

    def _sweep(self) -> None:
        """Starts the thread that sends what no further item has taken along."""
        thread = threading.Thread(target=self._sweep_up, name="tensorwire-burst", daemon=True)
        self._sweeping = True
        try:
            lifetime.start(thread)
        except BaseException:
            self._sweeping = False
            raise
        self._sweeper = thread

    def _sweep_up(self) -> None:
        claim = object()
        idle = 0
        while idle < _IDLE_SWEEPS and not self._ending:
            sleep(_SWEEP_SECONDS)
            if not self._pending:
                idle += 1
                continue
            idle = 0
            try:
                self._turn.acquire(claim, None)
                if self._pending:
                    self._send(self._pending, None)
            except QueueError:  # so will the next put
                break
            finally:
                self._turn.release(claim)
        self._turn.acquire(claim, None)
        self._sweeping = False
        if self._pending and self._talk.error is None and not self._ending:
            self._sweep()
        self._turn.release(claim)

    def close_at_exit(self) -> None:
        self._ending = True
        self._talk.cancel()
        if self._sweeper is not None:
            self._sweeper.join(lifetime.JOIN_SECONDS)

    # -------------------------------------------------------------------------------- blocking

    def put(self, items: Sequence[Item], timeout: float | None) -> None:
        """Raises QueueError; FullError: some or all of them are not, and never will be, in the
        queue."""
        end = ends(timeout)
        claim = object()
        try:
            if not self._turn.acquire(claim, timeout):
                raise self._full(timeout)
            self._check_open()
            if not self._covered():
                self._ask(left(end))
                if not self._talk.until(self._covered, left(end)):
                    raise self._full(timeout)
            last = self._sent + len(self._pending) + len(items)
            try:
                self._pass(items, left(end))
                done = self._covered() or self._talk.until(lambda: self._settled >= last, left(end))
            except BaseException:  # Ctrl-C, or the end of the stream
                if self._has_sent(last, len(items)):
                    with suppress(QueueError):
                        self._take_back(last, len(items))
                raise
            if not done and (accepted := self._take_back(last, len(items))) < len(items):
                raise self._full(timeout, accepted)
            self._turn.release(claim)
        except BaseException:
            self._turn.release(claim)
            raise

    def _check_open(self) -> None:
        if self._talk.error is not None:
            raise self._talk.error
        if self._closing:
            raise end_closed(self._name)

    def put_small(self, item: Item) -> bool:
        """As ``put``, for most items of a burst, which wait for others. False: it is none of those,
        or another thread puts."""
        turn = self._turn
        with turn.lock:
            now = monotonic()
            if (
                turn.holder is not None
                or now - self._passed >= _BURST_SECONDS
                or not self._sweeping
                or item.nbytes > SMALL
                or not self._may_wait(1, item.nbytes)
                or self._closing
                or self._talk.error is not None
            ):
                return False
            self._passed = now
            self._pending_bytes += item.nbytes
            self._pending.append(item)
        return True

    def _has_sent(self, last: int, count: int) -> bool:
        """Of ``count`` items up to ``last``, whose put ends. What has not left stays here."""
        if self._sent + len(self._pending) == last > self._sent:
            for item in self._pending[-count:]:
                self._pending_bytes -= item.nbytes
            del self._pending[-count:]
        return self._sent == last and self._talk.error is None

    def _take_back(self, last: int, count: int) -> int:
        """How many of ``count`` items up to ``last`` are in the queue all the same."""
        assert self._opened is not None
        first = last - count + 1
        accepted = self._withdraw(wire.Withdraw(self._opened.session, first, last))
        with suppress(QueueError):  # which the next put raises
            self._ask(_SETTLE_SECONDS)
            self._talk.until(lambda: self._settled >= last, _SETTLE_SECONDS)
        return accepted

    def flush(self, timeout: float | None) -> None:
        """Raises QueueError."""
        end = ends(timeout)
        claim = object()
        try:
            if not self._turn.acquire(claim, timeout):
                raise self._full(timeout)
            if not self._all_settled():
                self._ask(left(end))
                if not self._talk.until(self._all_settled, left(end)):
                    raise self._full(timeout)
            self._turn.release(claim)
        except BaseException:
            self._turn.release(claim)
            raise

    def _full(self, timeout: float | None, accepted: int = 0) -> FullError:
        return FullError(f"queue {self._name!r} had no room within {timeout or 0:g} s", accepted)

    # ---------------------------------------------------------------------- with an event loop

    async def put_async(self, items: Sequence[Item], timeout: float | None) -> None:
        """As ``put``."""
        end = ends(timeout)
        claim = object()
        try:
            if not await self._turn.acquire_async(claim, timeout):
                raise self._full(timeout)
            self._check_open()
            if not self._covered():
                await self._without_waiting(self._ask, _QUICK, left(end))
                if not await self._talk.until_async(self._covered, left(end)):
                    raise self._full(timeout)
            last = self._sent + len(self._pending) + len(items)
            nbytes = sum([item.nbytes for item in items])
            try:
                await self._without_waiting(partial(self._pass, items), nbytes, left(end))
                done = self._covered() or await self._talk.until_async(
                    lambda: self._settled >= last, left(end)
                )
            except BaseException:  # cancelled, or the end of the stream
                if self._has_sent(last, len(items)):
                    with suppress(QueueError):
                        await in_thread(self._take_back, last, len(items))
                raise
            if not done:
                accepted = await in_thread(self._take_back, last, len(items))
                if accepted < len(items):
                    raise self._full(timeout, accepted)
            self._turn.release(claim)
        except BaseException:
            self._turn.release(claim)
            raise

    async def _without_waiting(
        self, send: Callable[[float | None], object], nbytes: int, timeout: float | None
    ) -> None:
        """Sends in the event loop, if that takes no time, else in a thread, which is waited for
        after a cancellation, too."""
        if nbytes <= _QUICK:
            try:
                send(0.0)
            except FullError:  # the stream has no credit
                pass
            else:
                return
        await in_thread(send, timeout)

    async def flush_async(self, timeout: float | None) -> None:
        """As ``flush``."""
        end = ends(timeout)
        claim = object()
        try:
            if not await self._turn.acquire_async(claim, timeout):
                raise self._full(timeout)
            if not self._all_settled():
                await self._without_waiting(self._ask, self._pending_bytes, left(end))
                if not await self._talk.until_async(self._all_settled, left(end)):
                    raise self._full(timeout)
            self._turn.release(claim)
        except BaseException:
            self._turn.release(claim)
            raise

    # -------------------------------------------------------------------------------- the end

    def close(self, drain: bool, timeout: float | None) -> None:
        """Raises QueueError: what was put and not settled may be lost."""
        self._closing = True
        try:
            if drain:
                self.flush(timeout)
                self._talk.end_send()
                self._talk.until(lambda: self._talk.error is not None, timeout)
        finally:
            self._talk.cancel()
            self._talk.close()
