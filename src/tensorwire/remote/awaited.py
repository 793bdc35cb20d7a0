# SPDX-License-Identifier: Apache-2.0
"""What a blocking call makes, for coroutines: a thread makes it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tensorwire.remote.errors import RemoteError
from tensorwire.rpc import lifetime

M = TypeVar("M")


async def made(make: Callable[[], M], discard: Callable[[M], None]) -> M:
    """What ``make`` gives. When this is cancelled, it goes on in its thread, and what it gives goes
    to ``discard``, whose RemoteError nobody hears of."""
    lock = threading.Lock()  # guards what follows
    given_up = False
    there: list[M] = []

    def run() -> M:
        thing = make()
        with lock:
            there.append(thing)
            unwanted = given_up
        if unwanted:
            discarded(thing)
        return thing

    def discarded(thing: M) -> None:
        with suppress(RemoteError):
            discard(thing)

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        with lock:
            given_up = True
            late = list(there)
        for thing in late:  # it was there already, and the loop had not heard of it
            lifetime.start(
                threading.Thread(
                    target=discarded, args=(thing,), name="tensorwire-discard", daemon=True
                )
            )
        raise
