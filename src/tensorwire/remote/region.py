# SPDX-License-Identifier: Apache-2.0
"""Memory of a peer that it has opened for this process."""

from __future__ import annotations

from collections.abc import Callable

from tensorwire import _core
from tensorwire.remote.errors import PermissionDeniedError
from tensorwire.remote.handle import Handle, Rights
from tensorwire.remote.signals import Add, Set, SignalUpdate


class Region:
    """What an owner has opened for this process; all parts of a tensor share it.

    peer: whose it is. number: the link's name for it, 0: it has no bytes. signal: that of its word
    for signals; 0: this process may raise none. close: gives it back, called until it succeeds.
    """

    __slots__ = ("_close", "handle", "number", "peer", "rights", "signal")

    def __init__(
        self,
        peer: _core.Peer,
        handle: Handle,
        number: int,
        signal: int,
        rights: Rights,
        close: Callable[[], None],
    ) -> None:
        self.peer = peer
        self.handle = handle
        self.number = number
        self.signal = signal
        self.rights = rights
        self._close: Callable[[], None] | None = close

    def close(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            try:
                close()
            except BaseException:
                self._close = close  # to be called again
                raise

    def update(self, update: SignalUpdate) -> tuple[int, int, int, bool]:
        """As the core takes it. PermissionDeniedError."""
        if not isinstance(update, (Add, Set)):
            raise TypeError(f"a signal is raised by Add or Set, not by a {type(update).__name__}")
        if not self.signal:
            raise PermissionDeniedError(
                f"without the right to write or to update, no signal can be raised ({self.rights})"
            )
        return self.signal, 0, update.value, isinstance(update, Add)
