# SPDX-License-Identifier: Apache-2.0
"""The end of a queue's stream at a client that puts.

Items are sent one after the other without waiting, as long as the server has said that there is
room for them; what it has settled it says in groups, when it is asked. An item for which there may
be no room waits at the server for its turn, and its ``put`` for the server's word.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tensorwire.queue import wire
from tensorwire.queue.conversation import ANSWER_SECONDS, Conversation, ends, left, silent
from tensorwire.queue.errors import FullError
from tensorwire.queue.turn import Turn

if TYPE_CHECKING:
    from tensorwire._core import Buffer
    from tensorwire.queue.store import Item
    from tensorwire.rpc import Peer

Withdraw = Callable[[wire.Withdraw], int]
_QUICK: Final = 64 << 10
"""Bytes that are sent within an event loop, as far as the stream has credit for them."""


class Producing:
    """Thread-safe."""

    def __init__(self, peer: Peer, name: str, method: str, withdraw: Withdraw) -> None:
        """Waits for the server's first word. Raises QueueError."""
        self._name = name
        self._withdraw = withdraw
        self._turn = Turn()  # to send; one message at most waits for room
        self._opened: wire.Opened | None = None
        self._sent = self._sent_bytes = 0
        self._asked = 0  # the number of the last item with which the server was asked
        self._settled = self._settled_bytes = 0
        self._sizes: deque[int] = deque()  # of what is not settled
        self._room = self._room_bytes = 0
        self._talk = Conversation(peer.duplex(method), name, self._hear)
        if not self._talk.until(lambda: self._opened is not None, ANSWER_SECONDS):
            self._talk.cancel()
            raise silent(name)

    # --------------------------------------------------------------------- what the server says

    def _hear(self, message: list[Buffer]) -> None:
        if self._opened is None:
            opened = self._opened = wire.decode(wire.Opened, message[0])
            self._room, self._room_bytes = opened.room, opened.room_bytes
            return
        settled = wire.decode(wire.Settled, message[0])
        for _ in range(min(settled.count, self._sent) - self._settled):
            self._settled_bytes += self._sizes.popleft()
            self._settled += 1
        self._room, self._room_bytes = settled.room, settled.room_bytes

    def _covered(self) -> bool:
        """Whether there was room for all that is under way when the server last spoke."""
        return (
            self._sent - self._settled <= self._room
            and self._sent_bytes - self._settled_bytes <= self._room_bytes
        )

    @property
    def capacity_bytes(self) -> int:
        assert self._opened is not None
        return self._opened.capacity_bytes

    def _all_settled(self) -> bool:
        return self._settled == self._sent

    # -------------------------------------------------------------------------------- blocking

    def put(self, items: Sequence[Item], timeout: float | None) -> None:
        """Raises QueueError; FullError: some or all of them are not, and never will be, in the
        queue."""
        end = ends(timeout)
        if not self._turn.acquire(timeout):
            raise self._full(timeout)
        try:
            if not self._covered() and not self._talk.until(self._covered, left(end)):
                raise self._full(timeout)
            last = self._send(items, left(end))
            if self._covered():
                return
            first = last - len(items) + 1
            try:
                done = self._talk.until(lambda: self._settled >= last, left(end))
            except BaseException:  # Ctrl-C, or the end of the stream
                if self._talk.error is None:
                    self._take_back(first, last)
                raise
            if not done and (accepted := self._take_back(first, last)) < len(items):
                raise self._full(timeout, accepted)
        finally:
            self._turn.release()

    def _send(self, items: Sequence[Item], timeout: float | None) -> int:
        """The number of the last one."""
        nbytes = sum(item.nbytes for item in items)
        sent, sent_bytes = self._sent + len(items), self._sent_bytes + nbytes
        flying = sent - self._settled
        ask = (
            flying > self._room
            or sent_bytes - self._settled_bytes > self._room_bytes
            or (sent - self._asked) * 2 >= self._room
            or (sent_bytes - self._settled_bytes) * 2 >= self._room_bytes
        )
        message: list[object] = [wire.encoded_put(tuple(len(i.segments) for i in items), ask)]
        for item in items:
            message += item.segments
        # First the sizes: another thread may hear of it before this one goes on.
        self._sizes.extend([item.nbytes for item in items])
        self._sent, self._sent_bytes = sent, sent_bytes
        try:
            self._talk.send(message, timeout)
        except BaseException:
            for _ in items:
                self._sizes.pop()
            self._sent, self._sent_bytes = sent - len(items), sent_bytes - nbytes
            raise
        if ask:
            self._asked = sent
        return sent

    def _take_back(self, first: int, last: int) -> int:
        """How many of these items are in the queue all the same."""
        assert self._opened is not None
        return self._withdraw(wire.Withdraw(self._opened.session, first, last))

    def flush(self, timeout: float | None) -> None:
        """Raises QueueError."""
        end = ends(timeout)
        if not self._turn.acquire(timeout):
            raise self._full(timeout)
        try:
            if not self._all_settled():
                self._talk.send([wire.encoded_put((), True)], left(end))
                if not self._talk.until(self._all_settled, left(end)):
                    raise self._full(timeout)
        finally:
            self._turn.release()

    def _full(self, timeout: float | None, accepted: int = 0) -> FullError:
        return FullError(f"queue {self._name!r} had no room within {timeout or 0:g} s", accepted)

    # ---------------------------------------------------------------------- with an event loop

    async def put_async(self, items: Sequence[Item], timeout: float | None) -> None:
        """As ``put``."""
        end = ends(timeout)
        if not await self._turn.acquire_async(timeout):
            raise self._full(timeout)
        try:
            if not await self._talk.until_async(self._covered, left(end)):
                raise self._full(timeout)
            if sum(item.nbytes for item in items) <= _QUICK:
                last = self._send(items, left(end))
            else:
                # What was begun is ended in its thread: a cancellation waits for it.
                sending = asyncio.ensure_future(asyncio.to_thread(self._send, items, left(end)))
                try:
                    last = await asyncio.shield(sending)
                except asyncio.CancelledError:
                    last = await sending
                    await asyncio.to_thread(self._take_back, last - len(items) + 1, last)
                    raise
            if self._covered():
                return
            first = last - len(items) + 1
            try:
                done = await self._talk.until_async(lambda: self._settled >= last, left(end))
            except BaseException:
                if self._talk.error is None:
                    await asyncio.to_thread(self._take_back, first, last)
                raise
            if not done:
                accepted = await asyncio.to_thread(self._take_back, first, last)
                if accepted < len(items):
                    raise self._full(timeout, accepted)
        finally:
            self._turn.release()

    # -------------------------------------------------------------------------------- the end

    def close(self, drain: bool, timeout: float | None) -> None:
        """Raises QueueError: what was put and not settled may be lost."""
        try:
            if drain:
                self.flush(timeout)
                self._talk.end_send()
                self._talk.until(lambda: self._talk.error is not None, timeout)
        finally:
            self._talk.cancel()
            self._talk.close()
