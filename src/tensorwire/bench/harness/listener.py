# SPDX-License-Identifier: Apache-2.0
"""How processes of other hosts come to a conversation with the bench: a TCP port, and a secret that
both ends prove to have. Until then each end reads some bytes of fixed length, and nothing else."""

from __future__ import annotations

import hmac
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tensorwire.bench.harness.control import AgentError, Control

if TYPE_CHECKING:
    from typing_extensions import Self

_BYTES: Final = 32
"""Of a nonce, and of a proof."""
_PROOF_SECONDS: Final = 5.0
"""Of a stranger, until it has proved the secret."""
_LINE_SECONDS: Final = 30.0
"""Within a message, from its first byte to its last one."""
_LOOK_SECONDS: Final = 0.2
"""How often it is looked whether somebody is lost."""
_MOST_STRANGERS: Final = 64
"""At a time; others are turned away."""
# The other end is asked after 5 s of silence, and is lost when it does not answer for 6.
_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 11_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


class StrangerError(Exception):
    """The other end does not have the secret."""


class Hello(msgspec.Struct, frozen=True):
    """The first message of who has come: rank, and the number of the conversation, of which 0 is
    about the rank as a whole. told: what else there is to know."""

    rank: int
    number: int
    told: dict[str, Any]


def connect(host: str, port: int, secret: bytes, hello: Hello) -> Control:
    """A conversation with the bench that listens there. Raises OSError and StrangerError."""
    connection = socket.create_connection((host, port), _PROOF_SECONDS)
    control = Control(connection)
    try:
        theirs, mine = _read(connection), os.urandom(_BYTES)
        connection.sendall(mine + _proof(secret, b"comes", theirs, mine))
        if not hmac.compare_digest(_read(connection), _proof(secret, b"is here", theirs, mine)):
            raise StrangerError("it has another secret")
        _keep(connection)
        control.send(msgspec.to_builtins(hello))
        return control
    except BaseException:
        control.close()
        raise


def _proof(secret: bytes, which: bytes, theirs: bytes, mine: bytes) -> bytes:
    """Of one end: both have chosen a nonce, and the two ends' proofs differ."""
    return hmac.digest(secret, which + theirs + mine, "sha256")


def _read(connection: socket.socket) -> bytes:
    end, found = time.monotonic() + _PROOF_SECONDS, b""
    while len(found) < _BYTES:
        connection.settimeout(max(end - time.monotonic(), 1e-3))
        part = connection.recv(_BYTES - len(found))
        if not part:
            raise StrangerError("it has hung up: the secrets differ, or it is no bench")
        found += part
    return found


def _keep(connection: socket.socket) -> None:
    connection.settimeout(_LINE_SECONDS)
    for level, option, value in _ALIVE:
        connection.setsockopt(level, option, value)


class Listener:
    """Where ranks come, while the context is open. host: as it is bound. Raises OSError."""

    def __init__(self, host: str, port: int, secret: bytes) -> None:
        self._socket = socket.create_server((host, port))
        self.host, self.port = self._socket.getsockname()
        self._secret = secret
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)
        self._lock = threading.RLock()  # guards what follows
        self._changed = threading.Condition(self._lock)
        self._come: dict[tuple[int, int], tuple[Control, Hello]] = {}
        self._over: set[int] = set()  # numbers of conversations that nobody wants any more
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # which ends accept()
        self._thread.join()
        self._socket.close()
        with self._lock:
            for control, _ in self._come.values():
                control.close()

    def take(
        self, rank: int, number: int, seconds: float, check: Callable[[], None]
    ) -> tuple[Control, Hello] | None:
        """That conversation, which becomes the caller's; None: it has not come. check: is called
        again and again, and may raise."""
        end = time.monotonic() + seconds
        with self._lock:
            while (rank, number) not in self._come:
                check()
                if time.monotonic() > end:
                    return None
                self._changed.wait(_LOOK_SECONDS)
            return self._come.pop((rank, number))

    def forget(self, number: int) -> None:
        """Conversations of that number are closed, also those that come late."""
        with self._lock:
            self._over.add(number)
            for key in [key for key in self._come if key[1] == number]:
                self._come.pop(key)[0].close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except ConnectionAbortedError:  # a stranger has thought better of it
                continue
            except OSError:
                return
            if self._strangers.acquire(blocking=False):
                threading.Thread(target=self._admit, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _admit(self, connection: socket.socket) -> None:
        control = Control(connection)
        admitted = False
        try:
            with suppress(OSError, StrangerError, AgentError, ValueError):
                admitted = self._proved(connection) and self._enters(control)
        finally:
            if not admitted:
                control.close()
            self._strangers.release()

    def _proved(self, connection: socket.socket) -> bool:
        mine = os.urandom(_BYTES)
        connection.settimeout(_PROOF_SECONDS)
        connection.sendall(mine)
        theirs, proof = _read(connection), _read(connection)
        if not hmac.compare_digest(proof, _proof(self._secret, b"comes", mine, theirs)):
            return False
        connection.sendall(_proof(self._secret, b"is here", mine, theirs))
        _keep(connection)
        return True

    def _enters(self, control: Control) -> bool:
        hello = msgspec.convert(control.receive(), Hello)
        key = (hello.rank, hello.number)
        with self._lock:
            if key in self._come or hello.number in self._over:
                return False
            self._come[key] = control, hello
            self._changed.notify_all()
        return True
