# SPDX-License-Identifier: Apache-2.0
"""Memory of a peer that it has opened for this process."""

from __future__ import annotations

from collections.abc import Callable

from tensorwire import _core, transports
from tensorwire.remote.errors import PermissionDeniedError
from tensorwire.remote.handle import Handle, Rights
from tensorwire.remote.path import Path
from tensorwire.remote.signals import Add, Set, SignalUpdate


class Region:
    """What an owner has opened for this process; all parts of a tensor share it.

    peer: whose it is. number: the link's name for it, 0: it has no bytes. signal: that of its word
    for signals; 0: this process may raise none. device: how the device that has opened it reaches
    memory. close: gives it back, called until it succeeds.
    """

    __slots__ = ("_close", "_device", "handle", "number", "peer", "rights", "signal")

    def __init__(
        self,
        peer: _core.Peer,
        handle: Handle,
        number: int,
        signal: int,
        rights: Rights,
        device: Path,
        close: Callable[[], None],
    ) -> None:
        self.peer = peer
        self.handle = handle
        self.number = number
        self.signal = signal
        self.rights = rights
        self._device = device
        self._close: Callable[[], None] | None = close

    def close(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            try:
                close()
            except BaseException:
                self._close = close  # to be called again
                raise

    @property
    def mapped(self) -> bool:
        mapped = self.peer.mapped
        return self.number != 0 and mapped(self.number) and (not self.signal or mapped(self.signal))

    def path(self) -> Path:
        device = self._device
        if not transports.is_local(device.transport):
            return device
        reasons = {name: why for name, why in device.reasons.items() if name != "mapped"}
        if (why := self._why_not_mapped()) is not None:
            return Path("frames", device.transport, device.peer, {**reasons, "mapped": why})
        return Path("mapped", device.transport, device.peer, reasons)

    def _why_not_mapped(self) -> str | None:
        if not self.number:
            return "it has no bytes"
        if (why := self.peer.why_not_mapped(self.number)) is not None:
            return why
        if self.signal and (why := self.peer.why_not_mapped(self.signal)) is not None:
            return f"its signal is not: {why}"
        return None

    def update(self, update: SignalUpdate) -> tuple[int, int, int, bool]:
        """As the core takes it. PermissionDeniedError."""
        if not isinstance(update, (Add, Set)):
            raise TypeError(f"a signal is raised by Add or Set, not by a {type(update).__name__}")
        if not self.signal:
            raise PermissionDeniedError(
                f"without the right to write or to update, no signal can be raised ({self.rights})"
            )
        return self.signal, 0, update.value, isinstance(update, Add)
