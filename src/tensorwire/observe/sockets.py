# SPDX-License-Identifier: Apache-2.0
"""What the processes of a program send by stock gRPC, as their calls of the C library tell it.

A library that the loader puts before the C library (``binding/sockets``) notes them, in a file for
each process. A connection is gRPC's when it begins as HTTP/2 does. A buffer is what gRPC hands to
the kernel as one: an entry of an iovec. The kernel may take a part of it at a time; it counts once.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorwire import _core
from tensorwire.observe.messages import Buffer, Message

LIBRARY: Final = Path(_core.__file__).with_name("libtensorwire_sockets.so")
FUNCTIONS: Final = ("sendmsg", "writev", "sendto", "send", "write")
_PRELOAD: Final = "LD_PRELOAD"
# binding/sockets/record.h
_MAGIC: Final = b"TWSOCKS1"
_HEADER: Final = struct.Struct("=8sIIQQQQQ")
_CONNECTION: Final = struct.Struct("=IIQQ112s")
_BUFFER: Final = struct.Struct("=QQIHBB")
_TLS: Final = 2
_ZERO_COPY: Final = 1


@dataclass(frozen=True)
class Connection:
    """calls: that sent on it. bytes: that the kernel has taken. messages: of each call the buffers
    that begin in it, in the order of the calls; none of a connection with TLS."""

    pid: int
    peer: str
    tls: bool
    calls: int
    bytes: int
    messages: Sequence[Message]


@dataclass(frozen=True)
class Sockets:
    """pids: of the processes that noted what they sent, on ``connections``. What had no room is
    counted: connections, buffers of those that had, and calls on descriptors with too large a
    number."""

    pids: frozenset[int]
    connections: Sequence[Connection]
    connections_left_out: int
    buffers_left_out: int
    calls_left_out: int


def environment(folder: Path, most: int) -> dict[str, str]:
    """What a program is started with so that each of its processes notes its first ``most``
    buffers in ``folder``, 24 bytes for each. Raises ValueError where the loader would not find the
    library."""
    if set(": ") & set(str(LIBRARY)):
        raise ValueError(f"the loader takes no path with a space or a colon: {LIBRARY}")
    if not LIBRARY.is_file():
        raise ValueError(f"there is no {LIBRARY}: install tensorwire anew")
    # Libraries of the user's come first: some insist on it.
    preloaded = [*os.environ.get(_PRELOAD, "").split(), str(LIBRARY)]
    return {
        _PRELOAD: " ".join(preloaded),
        "TENSORWIRE_SOCKETS": str(most),
        "TENSORWIRE_TRACE_FOLDER": str(folder),
    }


def read(folder: Path) -> Sockets:
    """What processes have left there, those that were killed among them."""
    begun = [path for path in sorted(folder.glob("*.sockets")) if path.stat().st_size]
    files = [file for file in map(_File, begun) if file.whole]
    return Sockets(
        frozenset(file.pid for file in files),
        [connection for file in files for connection in file.connections()],
        connections_left_out=sum(file.connections_left_out for file in files),
        buffers_left_out=sum(file.buffers_left_out for file in files),
        calls_left_out=sum(file.calls_left_out for file in files),
    )


class _File:
    """What one process has left."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        magic, *figures = _HEADER.unpack_from(self._data)
        self.whole = magic == _MAGIC
        """False: the process ended while it began the file."""
        self.pid, self._room, most, connections, buffers, dropped, unseen = figures
        self._connections = min(connections, self._room)
        self._buffers = min(buffers, most)
        self.connections_left_out = connections - self._connections
        self.buffers_left_out = dropped
        self.calls_left_out = unseen

    def connections(self) -> Iterator[Connection]:
        messages = self._messages()
        for number in range(self._connections):
            at = _HEADER.size + number * _CONNECTION.size
            kind, size, calls, taken, address = _CONNECTION.unpack_from(self._data, at)
            sent = messages.get(number, [])
            yield Connection(self.pid, _name(address[:size]), kind == _TLS, calls, taken, sent)

    def _messages(self) -> dict[int, list[Message]]:
        """By the number of the connection."""
        begin = _HEADER.size + self._room * _CONNECTION.size
        end = begin + self._buffers * _BUFFER.size
        calls: dict[int, list[tuple[int, list[Buffer]]]] = {}
        for time, size, connection, place, function, flags in _BUFFER.iter_unpack(
            self._data[begin:end]
        ):
            if not time:  # there was no room on the disk, or the process ended just then
                continue
            sent = calls.setdefault(connection, [])
            if place == 0 or not sent or sent[-1][0] != time:
                sent.append((time, []))
            protocol = FUNCTIONS[function] + (", zero copy" if flags & _ZERO_COPY else "")
            sent[-1][1].append(Buffer(size, protocol))
        return {
            connection: [Message(time, tuple(buffers)) for time, buffers in sent]
            for connection, sent in calls.items()
        }


def _name(address: bytes) -> str:
    """Of a sockaddr, as gRPC's targets have it; nothing where the peer had gone already."""
    if len(address) < 2:
        return ""
    family = int.from_bytes(address[:2], sys.byteorder)
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(family, address[4:8])}:{_port(address)}"
    if family == socket.AF_INET6:
        host = socket.inet_ntop(family, address[8:24])
        mapped = host.removeprefix("::ffff:")
        return f"{mapped if '.' in mapped else f'[{host}]'}:{_port(address)}"
    return "unix:" + address[2:].split(b"\0")[0].decode(errors="replace")


def _port(address: bytes) -> int:
    return int.from_bytes(address[2:4], "big")
