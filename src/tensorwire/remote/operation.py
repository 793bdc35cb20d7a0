# SPDX-License-Identifier: Apache-2.0
"""Operations on a peer's memory that go on behind the caller's back."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import monotonic
from typing import Any, Final

from tensorwire import _core
from tensorwire.remote.errors import DeadlineExceededError, of_core

_LONGEST_PAUSE: Final = 0.001


class Operation:
    """Under way, or ended. ``wait()`` for it, or ``await`` it. It cannot be called back: what is
    read into, or written from, is kept until it ends, whoever still knows of it, and must not be
    changed before."""

    def __init__(self, peer: _core.Peer, accesses: Sequence[_core.Access]) -> None:
        self._peer = peer
        self._accesses = accesses

    @property
    def done(self) -> bool:
        """It has ended, well or not."""
        return all(access.ended for access in self._accesses)

    def wait(self, timeout: float | None = None) -> None:
        """Until it has ended: what was read is there, what was written is at the peer.

        timeout: seconds; None: without a limit, which the end of the link is anyway. Raises
        DeadlineExceededError, and it goes on; PeerLostError, and it may have been done in part;
        NotFoundError: the memory was concealed before or meanwhile, of which the same is true.
        """
        ends = None if timeout is None else monotonic() + timeout
        for access in self._accesses:
            try:
                ended = access.wait(None if ends is None else max(0.0, ends - monotonic()))
            except _core.StatusError as raised:
                raise of_core(raised, self._peer) from None
            if not ended:
                raise DeadlineExceededError(
                    f"an operation on memory of the peer at {self._peer.address} has not ended "
                    f"within {timeout:g} s: it goes on"
                )

    def __await__(self) -> Generator[Any, None, None]:
        """As ``wait``. The event loop looks for its end, at longer and longer intervals of at most
        a millisecond; what has ended already, as on mapped memory, costs no turn of the loop."""
        return self._ended().__await__()

    async def _ended(self) -> None:
        pause = 0.0
        while not self.done:
            import asyncio

            await asyncio.sleep(pause)
            pause = min(2 * pause + 1e-5, _LONGEST_PAUSE)
        self.wait(0.0)
