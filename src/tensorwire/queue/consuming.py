# SPDX-License-Identifier: Apache-2.0
"""The end of a queue's stream at a client that gets.

It asks for as many items as are waited for, and for ``prefetch`` more; one question is open at a
time. What came and was not waited for any more is what the next ``get`` takes. Each question tells
how many items the program has taken; those that it has not go back when the stream is closed.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tensorwire.queue import wire
from tensorwire.queue.conversation import ANSWER_SECONDS, Conversation, ends, left, silent
from tensorwire.queue.errors import EmptyError, QueueError
from tensorwire.tensors import DecodeError

if TYPE_CHECKING:
    from tensorwire._core import Buffer
    from tensorwire.queue.store import Item
    from tensorwire.rpc import Peer

Withdraw = Callable[[wire.Withdraw], int]


class Consuming:
    """Thread-safe."""

    def __init__(
        self, peer: Peer, name: str, method: str, withdraw: Withdraw, prefetch: int
    ) -> None:
        """Waits for the server's first word. Raises QueueError."""
        self._name = name
        self._withdraw = withdraw
        self._prefetch = prefetch
        self._lock = threading.Lock()  # guards what follows, down to the number of the question
        self._items: deque[Item] = deque()
        self._taken = 0
        self._told = 0  # items that the server counts as taken
        self._waiting = 0  # items that are waited for
        self._asked = 0  # the number of the last question
        self._answered = 0
        self._opened: wire.Opened | None = None
        self._talk = Conversation(peer.duplex(method), name, self._hear)
        if not self._talk.until(lambda: self._opened is not None, ANSWER_SECONDS):
            self._talk.cancel()
            raise silent(name)

    def _hear(self, message: list[Buffer]) -> None:
        if self._opened is None:
            self._opened = wire.decode(wire.Opened, message[0])
            return
        if self._answered == self._asked:
            raise DecodeError("an answer that nobody asked for")
        self._items.extend(wire.split(wire.decode(wire.Items, message[0]), message))
        self._answered += 1

    # ---------------------------------------------------------------------------------- taking

    def _take(self, most: int, waiting: bool = True) -> list[Item]:
        """What is there, for one who then is ``waiting`` no more; and asks for what is wanted."""
        found: list[Item] = []
        with self._lock:
            while self._items and len(found) < most:
                found.append(self._items.popleft())
                self._taken += 1
            if found and waiting:
                self._waiting -= most
            try:
                self._ask()
            except QueueError:
                if not found:
                    raise
            except BaseException:  # Ctrl-C: nobody gets them
                self._items.extendleft(reversed(found))
                self._taken -= len(found)
                if found and waiting:
                    self._waiting += most
                raise
        return found

    def _ask(self) -> None:
        """Lock held."""
        there = len(self._items)
        wanted = self._waiting + self._prefetch - there
        if self._asked != self._answered or wanted <= 0 or 2 * there > self._prefetch + 1:
            return
        assert self._opened is not None
        if sum([item.nbytes for item in list(self._items)]) >= self._opened.capacity_bytes:
            return  # the server keeps them until they are taken
        number = self._asked + 1
        taken = max(self._taken, self._told)
        question = wire.encode(wire.Ask(number, min(wanted, wire.MAX_ITEMS), taken))
        sent: deque[bool] = deque()
        self._asked = number  # the answer may come before this thread goes on
        try:
            self._talk.send([question], None, sent)
        finally:  # Ctrl-C comes before the question has left or after
            if sent and sent[-1]:
                self._told = taken
            else:
                self._asked = number - 1

    def _there(self) -> bool:
        """Items, or an answer after which the next question may be put."""
        return bool(self._items) or self._asked == self._answered

    def get(self, most: int, timeout: float | None) -> list[Item]:
        """1 to ``most`` items. Raises QueueError."""
        if found := self._take(most, waiting=False):
            return found  # else it is the empty list, whatever interrupts what follows
        end = ends(timeout)
        self._enter(most)
        try:
            while not (found := self._take(most)):
                if not self._talk.until(self._there, left(end)):
                    break
        finally:
            if not found and (question := self._leave(most)):
                self._take_back(question)
        if not found and not (found := self._take(most, waiting=False)):
            raise self._empty(timeout)
        return found

    async def get_async(self, most: int, timeout: float | None) -> list[Item]:
        """As ``get``; a cancelled one takes no item with it."""
        if found := self._take(most, waiting=False):
            return found  # else it is the empty list, whatever interrupts what follows
        end = ends(timeout)
        self._enter(most)
        try:
            while not (found := self._take(most)):
                if not await self._talk.until_async(self._there, left(end)):
                    break
        finally:
            if not found and (question := self._leave(most)):
                await asyncio.to_thread(self._take_back, question)
        if not found and not (found := self._take(most, waiting=False)):
            raise self._empty(timeout)
        return found

    def _enter(self, most: int) -> None:
        with self._lock:
            self._waiting += most

    def _leave(self, most: int) -> int:
        """The number of the question that nobody waits for any more; 0: there is none."""
        with self._lock:
            self._waiting -= most
            open_question = self._asked != self._answered
            return self._asked if open_question and not self._waiting + self._prefetch else 0

    def _take_back(self, question: int) -> None:
        """Returns once it has been answered, with items or without."""
        if self._talk.error is None:
            assert self._opened is not None
            self._withdraw(wire.Withdraw(self._opened.session, question, question))
            if not self._talk.until(lambda: self._answered >= question, ANSWER_SECONDS):
                raise silent(self._name)

    def _empty(self, timeout: float | None) -> EmptyError:
        return EmptyError(f"queue {self._name!r} had no item within {timeout or 0:g} s")

    # --------------------------------------------------------------------------------- the end

    def close(self, timeout: float | None) -> None:
        """Gives back what was not taken. Raises QueueError."""
        try:
            if self._talk.error is None:
                if self._asked != self._answered:
                    self._take_back(self._asked)
                taken = max(self._taken, self._told)
                self._talk.send([wire.encode(wire.Ask(0, 0, taken))], timeout)
                self._talk.end_send()
                self._talk.until(lambda: self._talk.error is not None, timeout)
        finally:
            self._items.clear()
            self._talk.cancel()
            self._talk.close()
