# SPDX-License-Identifier: Apache-2.0
"""Operations on a peer's memory that go on behind the caller's back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any

from tensorwire import _core
from tensorwire.remote import loops
from tensorwire.remote.errors import DeadlineExceededError, of_core


class Operation:
    """Under way, or ended. ``wait()`` for it, or ``await`` it. It cannot be called back: what is
    read into, or written from, is kept until it ends, whoever still knows of it, and must not be
    changed before."""

    def __init__(
        self,
        peer: _core.Peer,
        access: _core.Access | None,
        ending: loops.Ending | None = None,
    ) -> None:
        """access: None, where there was nothing to do. ending: what its event loop is told by."""
        self._peer = peer
        self._access = access
        self._ending = ending

    @classmethod
    def begin(
        cls, peer: _core.Peer, start: Callable[..., _core.Access], regions: Iterable[int]
    ) -> Operation:
        """Calls ``start``, for an operation on these regions; see ``loops.begin``. Raises
        RemoteError."""
        try:
            # What is mapped is accessed as it begins.
            access, ending = loops.begin(start, lambda: all(map(peer.mapped, regions)))
        except _core.StatusError as raised:
            raise of_core(raised, peer) from None
        return cls(peer, access, ending)

    @property
    def done(self) -> bool:
        """It has ended, well or not."""
        return self._access is None or self._access.ended

    def wait(self, timeout: float | None = None) -> None:
        """Until it has ended: what was read is there, what was written is at the peer.

        timeout: seconds; None: without a limit, which the end of the link is anyway. Raises
        DeadlineExceededError, and it goes on; PeerLostError, and it may have been done in part;
        NotFoundError: the memory was concealed before or meanwhile, of which the same is true.
        """
        self._wait(timeout, timeout)

    async def wait_async(self, timeout: float | None = None) -> None:
        """As ``wait``, and as ``await`` with a timeout. The event loop in whose thread it was begun
        is told of its end; another one has a thread wait for it meanwhile. What has ended already,
        as on mapped memory, costs no turn of the loop."""
        if not self.done:
            if self._ending is None or not self._ending.here:
                await asyncio.to_thread(self.wait, timeout)
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ending.wait(), timeout)
        self._wait(0.0, timeout)

    def _wait(self, seconds: float | None, timeout: float | None) -> None:
        """timeout: what who waits has said."""
        if self._access is None:
            return
        try:
            ended = self._access.wait(seconds)
        except _core.StatusError as raised:
            raise of_core(raised, self._peer) from None
        if not ended:
            raise DeadlineExceededError(
                f"an operation on memory of the peer at {self._peer.address} has not ended within "
                f"{timeout or 0:g} s: it goes on"
            )

    def __await__(self) -> Generator[Any, None, None]:
        return self.wait_async().__await__()
