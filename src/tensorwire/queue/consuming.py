# SPDX-License-Identifier: Apache-2.0
"""The end of a queue's stream at a client that gets.

It asks for as many items as are waited for, and for ``prefetch`` more; one question is open at a
time. What came and was not waited for any more is what the next ``get`` takes. Each question tells
how many items the program has taken; those that it has not go back when the stream is closed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from tensorwire.queue import wire
from tensorwire.queue.conversation import (
    ANSWER_SECONDS,
    Conversation,
    ends,
    in_thread,
    left,
    silent,
)
from tensorwire.queue.errors import EmptyError, QueueError, end_closed
from tensorwire.tensors import DecodeError

if TYPE_CHECKING:
    from tensorwire._core import Buffer
    from tensorwire.queue.store import Item
    from tensorwire.rpc import Peer

Withdraw = Callable[[wire.Withdraw], int]
T = TypeVar("T")


class _Taking:
    """Of one ``get``: what it has taken. ``count``: of all that this end has taken, with that; -1:
    some of it had been counted before."""

    __slots__ = ("count", "items", "most")

    def __init__(self, most: int) -> None:
        self.most: Final = most
        self.items: list[Item] = []
        self.count = 0


class Consuming:
    """Thread-safe. Ctrl-C may come between any two steps of the main thread, but not between simple
    assignments that follow each other: so changes that belong together are such."""

    def __init__(
        self, peer: Peer, name: str, method: str, withdraw: Withdraw, prefetch: int
    ) -> None:
        """Waits for the server's first word. Raises QueueError."""
        self._name = name
        self._withdraw = withdraw
        self._prefetch = prefetch
        self._lock = threading.Lock()  # guards what follows, down to the number of the question
        self._items: list[Item] = []
        self._counted = 0  # of these, so many first ones are among those that were taken
        self._taken = 0
        self._told = 0  # items that the server counts as taken
        self._waits: set[_Taking] = set()
        self._closing = False  # nothing is taken or asked for any more
        self._asked = 0  # the number of the last question
        self._answered = 0
        self._opened: wire.Opened | None = None
        self._talk = Conversation(peer.duplex(method), name, self._hear)
        if not self._talk.until(lambda: self._opened is not None, ANSWER_SECONDS):
            self._talk.cancel()
            raise silent(name)

    def _hear(self, message: list[Buffer], number: int) -> None:
        control = message[0] if message else b""
        if number == 0:
            self._opened = wire.decode(wire.Opened, control)
        elif number > self._answered:
            if number > self._asked:
                raise DecodeError("an answer that nobody asked for")
            items = wire.split(wire.decode(wire.Items, control), message)
            self._answered = number
            self._items += items

    # ---------------------------------------------------------------------------------- taking

    def _take(self, taking: _Taking) -> bool:
        """Takes what is there, and asks for what is wanted. False: nothing is there."""
        with self._lock:
            if self._closing:
                raise end_closed(self._name)
            if items := self._items[: taking.most]:
                number = len(items)
                again = min(number, self._counted)
                taken = self._taken + number - again
                count = -1 if again else taken
                taking.items = items
                del self._items[:number]
                self._counted -= again
                self._taken = taken
                taking.count = count
                self._waits.discard(taking)
            try:
                self._ask()
            except QueueError:
                if not taking.items:
                    raise
            return bool(taking.items)

    def _untake(self, taking: _Taking, kept: int = 0) -> None:
        """All but the first ``kept``: the next ``get`` takes them."""
        with self._lock:
            back = taking.items[kept:]
            number = len(back)
            # What others have taken since then counts behind these. So these stay counted.
            last = self._taken == taking.count and not self._counted
            taken = self._taken - (number if last else 0)
            counted = self._counted + (0 if last else number)
            count = taken if last else -1
            del taking.items[kept:]
            self._items[:0] = back
            self._counted = counted
            self._taken = taken
            taking.count = count

    def _ask(self) -> None:
        """Lock held."""
        there = len(self._items)
        wanted = sum([taking.most for taking in self._waits]) + self._prefetch - there
        if self._asked != self._answered or wanted <= 0 or 2 * there > self._prefetch + 1:
            return
        assert self._opened is not None
        if sum([item.nbytes for item in self._items]) >= self._opened.capacity_bytes:
            return  # the server keeps them until they are taken
        number = self._asked + 1
        taken = max(self._taken, self._told)
        question = wire.encode(wire.Ask(number, min(wanted, wire.MAX_ITEMS), taken))
        sent: deque[bool] = deque()
        try:
            self._asked = number  # the answer may come before this thread goes on
            self._talk.send([question], None, sent)
        finally:  # Ctrl-C comes before the question has left or after
            if sent and sent[-1]:
                self._told = taken
            else:
                self._asked = number - 1

    def get(self, most: int, timeout: float | None, decode: Callable[[Item], T]) -> list[T]:
        """1 to ``most`` items. Raises QueueError, and what ``decode`` raises for the first of them,
        which is gone then."""
        taking = _Taking(most)
        try:
            if not self._take(taking):
                end = ends(timeout)
                self._enter(taking)
                while not self._take(taking):
                    if not self._talk.until(self._there, left(end)):
                        break
                if question := self._leave(taking):
                    self._take_back(question)
                if not taking.items and not self._take(taking):
                    raise self._empty(timeout)
            return self._decoded(taking, decode)
        except BaseException:  # Ctrl-C: nobody gets them
            self._untake(taking)
            if question := self._leave(taking):
                with suppress(QueueError):
                    self._take_back(question)
            raise

    async def get_async(
        self, most: int, timeout: float | None, decode: Callable[[Item], T]
    ) -> list[T]:
        """As ``get``; a cancelled one takes no item with it."""
        taking = _Taking(most)
        try:
            if not self._take(taking):
                end = ends(timeout)
                self._enter(taking)
                while not self._take(taking):
                    if not await self._talk.until_async(self._there, left(end)):
                        break
                if question := self._leave(taking):
                    await in_thread(self._take_back, question)
                if not taking.items and not self._take(taking):
                    raise self._empty(timeout)
            return self._decoded(taking, decode)
        except BaseException:
            self._untake(taking)
            if question := self._leave(taking):
                with suppress(QueueError):
                    await in_thread(self._take_back, question)
            raise

    def _decoded(self, taking: _Taking, decode: Callable[[Item], T]) -> list[T]:
        """Those before the first that cannot be decoded; the others stay for the next ``get``."""
        found: list[T] = []
        try:
            for item in taking.items:
                found += [decode(item)]
        except Exception:
            self._untake(taking, len(found) or 1)
            if not found:
                taking.items.clear()
                raise
        return found

    def _there(self) -> bool:
        """Items, or an answer after which the next question may be put."""
        return bool(self._items) or self._asked == self._answered

    def _enter(self, taking: _Taking) -> None:
        with self._lock:
            self._waits.add(taking)

    def _leave(self, taking: _Taking) -> int:
        """The number of the question that nobody waits for any more; 0: there is none."""
        with self._lock:
            if taking not in self._waits:
                return 0
            self._waits.discard(taking)
            wanted = self._waits or self._prefetch
            return 0 if wanted or self._asked == self._answered else self._asked

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
        with self._lock:
            self._closing = True
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
