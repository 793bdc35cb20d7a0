# SPDX-License-Identifier: Apache-2.0
"""The wire format, as docs/wire-format.md says it: a peer that shares no code with the core.

Structures and the handshake, frames, and the two kinds of links. What is sent is the caller's
affair: a legitimate frame is a function here, and everything else can be put together by hand.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import hmac
import mmap
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.torture import http2

SHM, TCP = 1, 2
WINDOW: Final = 16 << 20
LIMIT_SECONDS: Final = 10.0
"""For whatever waits on the server."""

_HELLO: Final = struct.Struct("<8sHHIQQ16s16sQIIQ8s")
_CLIENT_OPEN: Final = struct.Struct("<8sHHI16s32s")
_SERVER_PROOF: Final = struct.Struct("<8sII32s32s")
_CLIENT_PROOF: Final = struct.Struct("<8s32s")
_SERVER_READY: Final = struct.Struct("<8sII")
_SHM_FRAME: Final = struct.Struct("<8sIIIIQ")
_HEADER: Final = struct.Struct("<IBBHQQII")
_CALL: Final = struct.Struct("<BBHIQ")

MESSAGE, EAGER, DATA, RTS, FIN, CREDIT, ABORT, GOAWAY = range(1, 9)
REGION, REGION_GONE, OPERATION, OUTCOME = range(9, 13)
INLINE, EAGER_SEGMENT, PUSH, READ, MAP = range(5)
START, PAYLOAD, END, CANCEL, INITIAL, TRAILING = (1 << bit for bit in range(6))

_SEAL, _SHRINK, _GROW, _FUTURE_WRITE = 1, 2, 4, 16
RING_SEALS: Final = _SHRINK | _GROW | _SEAL
SLAB_SEALS: Final = _SHRINK | _GROW | _FUTURE_WRITE | _SEAL
_FUTEX_WAKE: Final = 1
_SYS_FUTEX: Final = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
_libc: Final = ctypes.CDLL(None)


class RefusedError(Exception):
    """The server has refused, or has closed."""


@cache
def _host_facts() -> tuple[bytes, int]:
    text = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return bytes.fromhex(text.replace("-", "")), os.stat("/proc/self/ns/pid").st_ino


def hello(window: int = WINDOW, *, same_host: bool = True) -> bytes:
    boot, namespace = _host_facts() if same_host else (bytes(16), 0)
    return _HELLO.pack(
        b"TNSRWIRE",
        *(1, 1, 0),
        *(0, 0),
        *(secrets.token_bytes(16), boot, namespace),
        *(os.getpid(), os.geteuid(), window, bytes(8)),
    )


@dataclass(frozen=True)
class Invitation:
    """The answer to Open."""

    session: bytes
    instance: bytes
    secret: bytes
    addresses: tuple[str, ...]

    @staticmethod
    def of(answer: dict[str, Any]) -> Invitation:
        return Invitation(
            answer["session"], answer["instance"], answer["secret"], tuple(answer["addresses"])
        )

    def address(self, transport: int) -> str:
        wanted = {SHM: "shm:", TCP: "tcp:"}[transport]
        return next(a.removeprefix(wanted) for a in self.addresses if a.startswith(wanted))


def invited(host: str, port: int, source: str = "127.0.0.1") -> Invitation:
    with contextlib.closing(http2.Connection(host, port, source)) as connection:
        return Invitation.of(connection.open(hello()))


# -------------------------------------------------------------------------------------- handshake


def client_open(invitation: Invitation, transport: int, nonce: bytes) -> bytes:
    return _CLIENT_OPEN.pack(b"TWOPEN01", 1, transport, 0, invitation.session, nonce)


def proof(
    label: bytes, invitation: Invitation, transport: int, ours: bytes, theirs: bytes
) -> bytes:
    said = (
        label
        + struct.pack("<HH", 1, transport)
        + invitation.session
        + invitation.instance
        + ours
        + theirs
    )
    return hmac.digest(invitation.secret, said, "sha256")


def dial(address: str, transport: int, source: str = "127.0.0.1") -> socket.socket:
    """A connection to a listener of the data plane."""
    if transport == SHM:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(LIMIT_SECONDS)
        try:
            made.connect(address)
        except OSError:
            made.close()
            raise
        return made
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)), LIMIT_SECONDS, (source, 0))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def exactly(connection: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        more = connection.recv(count - len(got))
        if not more:
            raise RefusedError("the server has closed the connection")
        got += more
    return got


def open_half(connection: socket.socket, invitation: Invitation, transport: int) -> bytes:
    """ClientOpen, and the proof that answers the server's. RefusedError."""
    nonce = secrets.token_bytes(32)
    connection.sendall(client_open(invitation, transport, nonce))
    magic, code, _, theirs, proved = _SERVER_PROOF.unpack(exactly(connection, _SERVER_PROOF.size))
    if magic != b"TWSPRF01" or code:
        raise RefusedError(f"the server's proof has code {code}")
    label = b"tensorwire server proof 1"
    if not hmac.compare_digest(proved, proof(label, invitation, transport, nonce, theirs)):
        raise RefusedError("the server's proof is wrong")
    label = b"tensorwire client proof 1"
    return _CLIENT_PROOF.pack(b"TWCPRF01", proof(label, invitation, transport, nonce, theirs))


def shake_hands(connection: socket.socket, invitation: Invitation, transport: int) -> None:
    connection.sendall(open_half(connection, invitation, transport))
    magic, code, _ = _SERVER_READY.unpack(exactly(connection, _SERVER_READY.size))
    if magic != b"TWREADY1" or code:
        raise RefusedError(f"the server is ready with code {code}")


# ------------------------------------------------------------------------------------------ frames


def header(
    kind: int,
    body_length: int,
    *,
    segments: int = 0,
    stream: int = 0,
    message: int = 0,
    header_length: int = 0,
    first_segment: int = 0,
) -> bytes:
    return _HEADER.pack(
        body_length, kind, 0, segments, stream, message, header_length, first_segment
    )


def call_header(flags: int, method: str = "", *, timeout_ns: int = 0, code: int = 0) -> bytes:
    name = method.encode()
    return _CALL.pack(flags, code, len(name), 0, timeout_ns) + name


Segment = tuple[int, int]
"""Length and kind."""


def message(
    stream: int,
    number: int,
    call: bytes,
    segments: Sequence[Segment] = (),
    inline: bytes = b"",
    descriptors: Sequence[tuple[int, int, int, int]] = (),
) -> bytes:
    """A MESSAGE; descriptors are slab, generation, offset and lease."""
    entries = b"".join(struct.pack("<QII", length, kind, 0) for length, kind in segments)
    mapped = b"".join(struct.pack("<IIQQ", *one) for one in descriptors)
    body = entries + mapped + call + inline
    return (
        header(
            MESSAGE,
            len(body),
            segments=len(segments),
            stream=stream,
            message=number,
            header_length=len(call),
        )
        + body
    )


def unary(stream: int, number: int, method: str, payload: bytes) -> bytes:
    """A whole unary request."""
    call = call_header(START | PAYLOAD | END, method)
    return message(stream, number, call, [(len(payload), INLINE)], payload)


def data(stream: int, number: int, segment: int, offset: int, chunk: bytes) -> bytes:
    body = struct.pack("<Q", offset) + chunk
    return header(DATA, len(body), stream=stream, message=number, first_segment=segment) + body


def fin(ids: Sequence[int]) -> bytes:
    return header(FIN, 8 * len(ids)) + struct.pack(f"<{len(ids)}Q", *ids)


def credit(stream: int, count: int) -> bytes:
    return header(CREDIT, 8, stream=stream) + struct.pack("<Q", count)


def goaway(code: int, reason: bytes) -> bytes:
    return header(GOAWAY, 4 + len(reason)) + struct.pack("<I", code) + reason


# ------------------------------------------------------------------------------------------- links


class Link:
    """A proved connection, whose frames travel on the socket (tcp)."""

    transport = TCP

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, frames: bytes) -> None:
        """OSError when the server has ended the link, or takes nothing for ten seconds."""
        self.socket.sendall(frames)

    def receive(self, count: int) -> bytes:
        return exactly(self.socket, count)

    def frame(self) -> tuple[int, int, bytes]:
        """The next frame: its type, stream and body."""
        fields = _HEADER.unpack(self.receive(_HEADER.size))
        return fields[1], fields[4], self.receive(fields[0])

    def ended(self, seconds: float = LIMIT_SECONDS) -> bool:
        """Waits until the server has ended the link, throwing away what it says."""
        end = time.monotonic() + seconds
        with contextlib.suppress(ConnectionError):
            while (left := end - time.monotonic()) > 0:
                if not select.select([self.socket], [], [], left)[0]:
                    return False
                if not self.socket.recv(1 << 16):
                    break
            else:
                return False
        return True

    def close(self) -> None:
        self.socket.close()


def _send_setup(
    connection: socket.socket, fields: tuple[int, int, int, int, int], descriptors: Sequence[int]
) -> None:
    rights = array.array("i", descriptors)
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
    connection.sendmsg([_SHM_FRAME.pack(b"TWSHM001", *fields)], control)


def send_rings(connection: socket.socket, size: int, descriptors: Sequence[int]) -> None:
    _send_setup(connection, (1, 0, 0, 0, size), descriptors)


def ring(connection: socket.socket) -> None:
    """Has the other end look at the rings."""
    with contextlib.suppress(BlockingIOError):
        connection.send(_SHM_FRAME.pack(b"TWSHM001", 4, 0, 0, 0, 0), socket.MSG_DONTWAIT)


def send_slab(connection: socket.socket, number: int, size: int, descriptor: int) -> None:
    """A slab of generation 1."""
    _send_setup(connection, (2, number, 1, 0, size), [descriptor])


class ShmLink(Link):
    """A proved connection with rings; this end is the client, side 0."""

    transport = SHM

    def __init__(self, connection: socket.socket, ring: int = 65536) -> None:
        super().__init__(connection)
        self.ring = ring
        memory = sealed_memory(4096 + 2 * ring, RING_SEALS)
        self.memory = mmap.mmap(memory, 4096 + 2 * ring)
        self._written = self._read = 0
        send_rings(connection, ring, (memory,))
        os.close(memory)

    def word(self, offset: int) -> int:
        return int(struct.unpack_from("<I", self.memory, offset)[0])

    def cursor(self, offset: int) -> int:
        return int(struct.unpack_from("<Q", self.memory, offset)[0])

    def poke(self, offset: int, value: int) -> None:
        """Stores a cursor, or whatever."""
        struct.pack_into("<Q", self.memory, offset, value & (1 << 64) - 1)

    def send(self, frames: bytes) -> None:
        end = time.monotonic() + LIMIT_SECONDS
        while frames:
            room = self.ring - (self._written - self.cursor(128))
            if room <= 0:
                self._wait(end)
                continue
            at = self._written % self.ring
            piece = frames[: min(room, self.ring - at)]
            self.memory[4096 + at : 4096 + at + len(piece)] = piece
            self._written += len(piece)
            frames = frames[len(piece) :]
            self.poke(0, self._written)
            self.wake()

    def receive(self, count: int) -> bytes:
        end = time.monotonic() + LIMIT_SECONDS
        got = b""
        while len(got) < count:
            ready = self.cursor(256) - self._read
            if ready <= 0:
                self._wait(end)
                continue
            at = self._read % self.ring
            size = min(ready, self.ring - at, count - len(got))
            begin = 4096 + self.ring + at
            got += self.memory[begin : begin + size]
            self._read += size
            self.poke(384, self._read)
            self.wake()
        return got

    def wake(self) -> None:
        """Whoever sleeps at the other end: the write to the socket orders the stores before."""
        ring(self.socket)
        if self.word(640) == 2:
            struct.pack_into("<I", self.memory, 640, 0)
            address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory, 640))
            _libc.syscall(_SYS_FUTEX, ctypes.c_void_p(address), _FUTEX_WAKE, 1, None, None, 0)

    def _wait(self, end: float) -> None:
        """For the server to do something, or to be gone."""
        if time.monotonic() > end:
            raise TimeoutError("the server does nothing")
        if select.select([self.socket], [], [], 0.0005)[0]:
            try:
                if not self.socket.recv(4096):  # slabs are none of our business
                    raise RefusedError("the server has ended the link")
            except ConnectionError as error:
                raise RefusedError(str(error)) from error

    def close(self) -> None:
        super().close()
        with contextlib.suppress(BufferError):
            self.memory.close()


def sealed_memory(size: int, seals: int) -> int:
    memory = os.memfd_create("torture", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(memory, size)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    return memory


def slab(size: int) -> int:
    """A memfd as SLAB wants it: sealed, and open for reading only."""
    memory = sealed_memory(size, SLAB_SEALS)
    try:
        return os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
    finally:
        os.close(memory)


def link(invitation: Invitation, transport: int, source: str = "127.0.0.1") -> Link:
    """A legitimate link; what happens on it is up to its owner."""
    connection = dial(invitation.address(transport), transport, source)
    try:
        shake_hands(connection, invitation, transport)
        return ShmLink(connection) if transport == SHM else Link(connection)
    except BaseException:
        connection.close()
        raise
