# SPDX-License-Identifier: Apache-2.0
"""Those who are nobody: connections to each listener that never prove anything.

Each kind is a generator that makes one connection each time it is asked.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tests.torture import http2, wire

DOORS: Final = ("grpc", "tcp", "unix")
SHORT: Final = 2.0
"""Seconds that an attacker waits for the server before it goes on."""


class BreachError(Exception):
    """The server has let something pass that it must not."""


class Scene(NamedTuple):
    """What an attacker knows."""

    host: str
    port: int
    listener: str
    rng: random.Random
    source: str
    """Address that its calls of Open come from."""

    @property
    def transport(self) -> int:
        return wire.SHM if self.listener == "unix" else wire.TCP

    def invited(self) -> wire.Invitation:
        return wire.invited(self.host, self.port, self.source)


Kind = Callable[[Scene], Iterator[None]]


class Visitor:
    """Dials one listener, again and again; keeps so many connections open at a time."""

    def __init__(self, scene: Scene, keep: int = 0) -> None:
        self._scene = scene
        self._keep = keep
        self.held: deque[socket.socket] = deque()
        if scene.listener != "grpc":
            self._address = scene.invited().address(scene.transport)

    def dial(self) -> socket.socket:
        if self._scene.listener == "grpc":
            made = socket.create_connection((self._scene.host, self._scene.port), SHORT)
        else:
            made = wire.dial(self._address, self._scene.transport)
        made.settimeout(SHORT)
        self.held.append(made)
        while len(self.held) > self._keep + 1:
            self.held.popleft().close()
        return made

    def first_words(self, invitation: wire.Invitation | None = None) -> bytes:
        """What a client of that listener says first."""
        if self._scene.listener == "grpc":
            return http2.PREFACE + http2.frame(4, 0, 0) + http2.request(1, wire.hello())
        session = invitation.session if invitation else secrets.token_bytes(16)
        nobody = wire.Invitation(session, bytes(16), bytes(32), ())
        return wire.client_open(nobody, self._scene.transport, secrets.token_bytes(32))


def silent(scene: Scene) -> Iterator[None]:
    visitor = Visitor(scene, keep=600)
    while True:
        visitor.dial()
        yield


def drip(scene: Scene) -> Iterator[None]:
    """A byte at a time, over many connections in turn."""
    visitor = Visitor(scene, keep=200)
    words = visitor.first_words()
    while True:
        visitor.dial()
        for one in list(visitor.held)[:: max(1, len(visitor.held) // 10)]:
            with contextlib.suppress(OSError):
                one.send(scene.rng.choice(words).to_bytes(1, "little"))
        yield


def garbage(scene: Scene) -> Iterator[None]:
    visitor = Visitor(scene, keep=20)
    while True:
        connection = visitor.dial()
        connection.sendall(scene.rng.randbytes(scene.rng.randrange(1, 4096)))
        yield


def truncated(scene: Scene) -> Iterator[None]:
    """The beginning of what is due, then the end of the connection."""
    visitor = Visitor(scene, keep=20)
    while True:
        connection = visitor.dial()
        words = visitor.first_words()
        connection.sendall(words[: scene.rng.randrange(len(words))])
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        yield


def half_handshake(scene: Scene) -> Iterator[None]:
    """All that is due, then nothing."""
    visitor = Visitor(scene, keep=300)
    if scene.listener == "grpc":
        while True:
            begun = http2.PREFACE + http2.frame(4, 0, 0) + http2.headers(1)
            visitor.dial().sendall(begun)
            yield
    while True:
        invitation = scene.invited()
        for _ in range(64):
            visitor.dial().sendall(visitor.first_words(invitation))
            yield


def reset(scene: Scene) -> Iterator[None]:
    """Connections that end with RST, after nothing or after some words."""
    visitor = Visitor(scene, keep=1)
    while True:
        connection = visitor.dial()
        words = visitor.first_words()
        connection.sendall(words[: scene.rng.randrange(len(words) + 1)])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        yield


def wrong_proof(scene: Scene) -> Iterator[None]:
    """A session overheard, without its secret: random proofs, and the server's own sent back."""
    visitor = Visitor(scene)
    while True:
        invitation = scene.invited()
        for _ in range(64):
            connection = visitor.dial()
            connection.sendall(visitor.first_words(invitation))
            answer = wire.exactly(connection, 80)
            stolen = answer[48:] if scene.rng.random() < 0.5 else secrets.token_bytes(32)
            connection.sendall(b"TWCPRF01" + stolen)
            with contextlib.suppress(ConnectionError, wire.RefusedError):
                _, code, _ = struct.unpack("<8sII", wire.exactly(connection, 16))
                if code == 0:
                    raise BreachError("a wrong proof has been accepted")
            yield


def unknown_session(scene: Scene) -> Iterator[None]:
    visitor = Visitor(scene)
    while True:
        connection = visitor.dial()
        connection.sendall(visitor.first_words())
        with contextlib.suppress(ConnectionError, wire.RefusedError):
            code = struct.unpack_from("<I", wire.exactly(connection, 80), 8)[0]
            if code == 0:
                raise BreachError("an unknown session has been accepted")
        yield


def descriptors(scene: Scene) -> Iterator[None]:
    """As many descriptors as a message takes, with whatever bytes, and nobody to take them."""
    visitor = Visitor(scene, keep=50)
    opened = os.open("/dev/null", os.O_RDONLY)
    while True:
        connection = visitor.dial()
        words = visitor.first_words()
        for byte in words[: scene.rng.randrange(1, 8)]:
            with contextlib.suppress(BlockingIOError, TimeoutError):
                socket.send_fds(connection, [bytes((byte,))], [opened] * 253)
        yield


def opens(scene: Scene) -> Iterator[None]:
    """Sessions that nobody uses. A refusal is an answer, too."""
    connection = None
    while True:
        try:
            if connection is None:
                connection = http2.Connection(scene.host, scene.port, scene.source)
            answers = connection.calls([wire.hello()] * 20)
        except (OSError, http2.RefusedError):
            connection = None
            answers = [None]
        for _ in answers:
            yield


def open_garbage(scene: Scene) -> Iterator[None]:
    """Calls of Open whose request is no Hello, or one that asks for the impossible."""
    connection = None
    while True:
        hellos = [_damaged(scene.rng) for _ in range(20)]
        try:
            if connection is None:
                connection = http2.Connection(scene.host, scene.port, scene.source)
            answers = connection.calls(hellos)
        except (OSError, http2.RefusedError):
            connection = None
            answers = [None]
        if any(answers):
            raise BreachError("Open has answered what is no Hello")
        for _ in answers:
            yield


def _damaged(rng: random.Random) -> bytes:
    hello = wire.hello()
    return rng.choice(
        (
            rng.randbytes(rng.randrange(200)),
            hello[: rng.randrange(96)],
            hello + b"\0",
            hello[:8] + struct.pack("<HHI", 9, 10, 0) + hello[16:],  # versions to come
            hello[:8] + struct.pack("<HHI", 2, 1, 0) + hello[16:],
            hello[:16] + struct.pack("<QQ", 1 << 63, 1 << 63) + hello[32:],
            hello[:80] + bytes(8) + hello[88:],  # no window
        )
    )


KINDS: Final[dict[str, tuple[tuple[str, ...], Kind]]] = {
    "silent": (DOORS, silent),
    "drip": (DOORS, drip),
    "garbage": (DOORS, garbage),
    "truncated": (DOORS, truncated),
    "half a handshake": (DOORS, half_handshake),
    "reset": (("grpc", "tcp"), reset),
    "wrong proof": (("tcp", "unix"), wrong_proof),
    "unknown session": (("tcp", "unix"), unknown_session),
    "descriptors": (("unix",), descriptors),
    "unused sessions": (("grpc",), opens),
    "malformed Open": (("grpc",), open_garbage),
}


def counted(kind: Kind, scene: Scene) -> Iterator[None]:
    """Attempts of ``kind``, for ever; that the server refuses or hangs up ends one attempt."""
    while True:
        with contextlib.suppress(OSError, wire.RefusedError, http2.RefusedError):
            yield from kind(scene)
        yield
