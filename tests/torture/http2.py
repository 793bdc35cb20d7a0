# SPDX-License-Identifier: Apache-2.0
"""As much of HTTP/2 (RFC 9113) and gRPC as ``Bootstrap/Open`` takes: strangers choose the address
that they come from, which grpcio's clients cannot, and send what grpcio never would."""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

import msgspec

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
OPEN: Final = "/tensorwire.v1.Bootstrap/Open"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK, _PADDED = 1, 4, 1, 8


class RefusedError(Exception):
    """There was no answer with a message."""


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return (
        struct.pack(">I", len(body))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body
    )


def _literal(name: str, value: str) -> bytes:
    """A header field that enters no table (RFC 7541, 6.2.2); both shorter than 127 bytes."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def headers(stream: int, path: str = OPEN) -> bytes:
    """The beginning of a gRPC request."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(_literal(name, value) for name, value in fields.items())
    return frame(_HEADERS, _END_HEADERS, stream, block)


def request(stream: int, message: bytes, path: str = OPEN) -> bytes:
    """A unary gRPC request."""
    prefixed = b"\0" + struct.pack(">I", len(message)) + message
    return headers(stream, path) + frame(_DATA, _END_STREAM, stream, prefixed)


class Connection:
    """A connection to a gRPC port, from an address of this host."""

    def __init__(
        self, host: str, port: int, source: str = "127.0.0.1", seconds: float = 10
    ) -> None:
        self._socket = socket.create_connection((host, port), seconds, (source, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._next = 1
        self._socket.sendall(PREFACE + frame(_SETTINGS, 0, 0))

    def close(self) -> None:
        self._socket.close()

    def calls(self, messages: list[bytes], path: str = OPEN) -> list[bytes | None]:
        """Calls at once; the message of each reply, None where there is none."""
        streams = range(self._next, self._next + 2 * len(messages), 2)
        self._next += 2 * len(messages)
        requests = (request(s, m, path) for s, m in zip(streams, messages, strict=True))
        self._socket.sendall(b"".join(requests))
        waited = set(streams)
        bodies = dict.fromkeys(streams, b"")
        while waited:
            kind, flags, stream, body = self._frame()
            if kind == _SETTINGS and not flags & _ACK:
                self._socket.sendall(frame(_SETTINGS, _ACK, 0))
            elif kind == _PING and not flags & _ACK:
                self._socket.sendall(frame(_PING, _ACK, 0, body))
            elif kind == _DATA and body:
                self._socket.sendall(frame(_WINDOW, 0, 0, struct.pack(">I", len(body))))
                bodies[stream] += body[1 : len(body) - body[0]] if flags & _PADDED else body
            elif kind == _GOAWAY:
                raise RefusedError("GOAWAY")
            if kind == _RESET or (kind in (_HEADERS, _DATA) and flags & _END_STREAM):
                waited.discard(stream)
        return [bodies[stream][5:] or None for stream in streams]

    def open(self, hello: bytes) -> dict[str, Any]:
        """One Open. RefusedError: it has no answer."""
        return self.opens([hello])[0]

    def opens(self, hellos: list[bytes]) -> list[dict[str, Any]]:
        answers = self.calls(hellos)
        if None in answers:
            raise RefusedError("Open has been refused")
        return [msgspec.msgpack.decode(answer) for answer in answers if answer]

    def _frame(self) -> tuple[int, int, int, bytes]:
        self._fill(9)
        head = self._buffer[:9]
        length = int.from_bytes(head[:3], "big")
        self._fill(9 + length)
        body, self._buffer = self._buffer[9 : 9 + length], self._buffer[9 + length :]
        return head[3], head[4], int.from_bytes(head[5:9], "big") & 0x7FFFFFFF, body

    def _fill(self, wanted: int) -> None:
        while len(self._buffer) < wanted:
            got = self._socket.recv(65536)
            if not got:
                raise RefusedError("the connection was closed")
            self._buffer += got
