# SPDX-License-Identifier: Apache-2.0
"""Event loops that are told of the end of operations."""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Final

from tensorwire import _core
from tensorwire.rpc import lifetime


class Ending:
    """Of one operation that was begun in an event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, queue: _core.EventQueue, token: int
    ) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self.queue: Final = queue
        self.token: Final = token
        """What the queue gets at the operation's end."""

    @property
    def here(self) -> bool:
        """Whether its loop runs in this thread."""
        return asyncio._get_running_loop() is self._loop

    def tell(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


class _Endings:
    """Of one event loop, in whose thread it is used."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = _core.EventQueue()
        self._tokens = itertools.count(1)
        self._expected: dict[int, Ending] = {}
        loop.add_reader(self._queue.fileno(), self._ready)

    def add(self, loop: asyncio.AbstractEventLoop) -> Ending:
        ending = Ending(loop, self._queue, next(self._tokens))
        self._expected[ending.token] = ending
        return ending

    def forget(self, ending: Ending) -> None:
        self._expected.pop(ending.token, None)

    def _ready(self) -> None:
        for token in self._queue.wait(0.0) or ():
            if (ending := self._expected.pop(token, None)) is not None:
                ending.tell()


class _Loops:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endings: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Endings] = (
            weakref.WeakKeyDictionary()
        )
        lifetime.close_at_exit(self)

    def of(self, loop: asyncio.AbstractEventLoop) -> _Endings:
        with self._lock:
            endings = self._endings.get(loop)
            if endings is None:
                self._forget_closed()
                endings = self._endings[loop] = _Endings(loop)
            return endings

    def _forget_closed(self) -> None:
        """Lock held. Loops that ended before their operations: what is expected refers to them."""
        for loop in list(self._endings):
            if loop.is_closed():
                self._endings.pop(loop, None)

    def close_at_exit(self) -> None:
        self._endings.clear()
        _loops.forget()  # native objects must not outlive the interpreter


_loops: Final = lifetime.PerProcess(_Loops)


def begin(
    start: Callable[..., _core.Access], at_once: Callable[[], bool]
) -> tuple[_core.Access, Ending | None]:
    """Begins an operation, with the arguments ``queue`` and ``token`` where an event loop runs in
    this thread, which is then told of its end. Raises what it does.

    at_once: whether it will have ended when it has begun, so that nobody has to be told.
    """
    loop = asyncio._get_running_loop()
    if loop is None or at_once():
        return start(), None
    endings = _loops.get().of(loop)
    ending = endings.add(loop)
    try:
        return start(queue=ending.queue, token=ending.token), ending
    except BaseException:
        endings.forget(ending)
        raise
