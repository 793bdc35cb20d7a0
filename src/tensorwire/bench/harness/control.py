# SPDX-License-Identifier: Apache-2.0
"""What the bench says to its agents: one JSON object in a line, over a unix socket, or from host to
host over TCP (``listener``)."""

from __future__ import annotations

import ctypes
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from tensorwire.environment import SettingError

MOST_BYTES: Final = 64 << 20
"""Of a message."""
_PR_SET_PDEATHSIG: Final = 1


class AgentError(Exception):
    """An agent reported an error, fell silent or died."""


class LostError(Exception):
    """A host that takes part is lost, without which nothing can be measured any more."""


class Control:
    """One end of the conversation. Each end speaks only when it is asked or has failed, so that no
    message ever waits behind another one."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.lines = connection.makefile("rb")

    def send(self, message: dict[str, Any]) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """The next message; {} when the other end has closed. Raises OSError, and AgentError for
        one that is too long."""
        line = self.lines.readline(MOST_BYTES + 1)
        if len(line) > MOST_BYTES:
            raise AgentError(f"a message of more than {MOST_BYTES} bytes")
        message: dict[str, Any] = json.loads(line) if line else {}
        return message

    def fileno(self) -> int:
        return self.connection.fileno()

    def close(self) -> None:
        self.lines.close()
        self.connection.close()


@contextmanager
def conversation(path: str) -> Iterator[Control]:
    """An agent's end, at the bench's unix socket. What ends the agent is reported to the bench."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    control = Control(connection)
    # An agent that is stopped (``processes.resting``) when the bench is killed goes on, hears of
    # that and ends, too. The kernel looks at the thread that started it, which waits for its end.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    try:
        yield control
    except Exception as error:
        with suppress(OSError):  # the bench may be gone: that may be the very error
            control.send({"error": f"{type(error).__name__}: {error}"})
        if isinstance(error, SettingError):  # whose sentence is all that a user needs
            raise SystemExit(1) from None
        raise
    finally:
        control.close()
