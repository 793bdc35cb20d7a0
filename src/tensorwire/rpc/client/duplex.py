# SPDX-License-Identifier: Apache-2.0
"""Streaming calls that their caller drives message by message, without an iterator or a thread."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tensorwire import _core
from tensorwire.rpc import kept, status

if TYPE_CHECKING:
    from tensorwire._core import Buffer, EventQueue, Message

Inbox = deque["list[Buffer] | None"]


class Duplex:
    """A call whose messages are lists of segments, in both directions. Thread-safe. It is cancelled
    when nothing refers to it any more."""

    def __init__(self, link: _core.Peer, method: str) -> None:
        """Raises CallError (UNAVAILABLE) once the link is gone."""
        kept.free_in_background()
        try:
            self._call = link.start(method, None, None)
        except _core.StatusError as error:
            raise status.CallError(error.code, error.details) from None

    def send(self, message: Message, timeout: float | None, sent: deque[bool]) -> None:
        """Waits for the stream's credit; the message's memory may be written once this returns.
        Appends to ``sent``; False: the call has ended. Raises CallError: DEADLINE_EXCEEDED after
        ``timeout`` seconds, and RESOURCE_EXHAUSTED: the server will not see the message.

        No signal's handler runs between the send and the append: after Ctrl-C, the server will see
        the message if ``sent`` says so, and otherwise not.
        """
        send: Any = self._call.send
        try:
            sent.extend(map(send, (message,), (False,), (timeout,)))
        except _core.StatusError as error:
            raise status.CallError(error.code, error.details) from None

    def end_send(self) -> None:
        """After the last message of this side."""
        self._call.end_send()

    def receive_to(self, inbox: Inbox, timeout: float | None) -> bool:
        """Appends the server's next message to ``inbox``; None after the last one. False: none has
        come within ``timeout`` seconds (0: without waiting).

        No signal's handler runs between the receipt and the append: Ctrl-C loses no message.
        """
        receive: Any = self._call.receive
        try:
            inbox.extend(map(receive, (True,), (timeout,)))
        except _core.StatusError as error:
            if error.code == status.DEADLINE_EXCEEDED:
                return False
            raise status.CallError(error.code, error.details) from None
        return True

    def outcome(self, timeout: float | None) -> status.CallError | None:
        """How the call has ended: None is OK, and so is that it has not within ``timeout``."""
        ending = self._call.status(timeout)
        if ending is None or ending[0] == status.OK:
            return None
        return status.CallError(ending[0], ending[1])

    @property
    def ended(self) -> bool:
        return self._call.ended

    def cancel(self) -> None:
        self._call.cancel()

    def notify_message(self, queue: EventQueue, token: int) -> None:
        """Puts ``token`` into ``queue`` once there is a message to receive, or will be none."""
        self._call.notify(queue, token, _core.ON_MESSAGE)
