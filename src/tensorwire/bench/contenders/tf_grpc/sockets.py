# SPDX-License-Identifier: Apache-2.0
"""Limit line: plain Python TCP sockets. A head of fixed size, and then the buffers, of which the
kernel gathers as many as it takes at a time; the receiver has them joined, in memory that is used
again. No metadata and no status.

``sockets`` has the congestion control that the host sets, ``sockets-<name>`` another one.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import numpy as np

from tensorwire.bench.contenders.rpc.sockets import receive_into, received, tune
from tensorwire.bench.suites.rpc.contender import ANSWER
from tensorwire.bench.suites.tf_grpc.contender import (
    Begin,
    Call,
    Client,
    Contender,
    Octets,
    Procedure,
    Request,
    answer,
    buffers,
)
from tensorwire.bench.suites.tf_grpc.payloads import MOST_BYTES
from tensorwire.observe.host import congestion_control, same_host_congestion_control

_HEAD: Final = struct.Struct("<??q")
"""Whether the payload goes back, whether it is read, and how many bytes it has."""
_AT_A_TIME: Final = 512
"""Buffers that one system call gathers."""
_PROOF_SECONDS: Final = 5.0
"""For a newcomer to show its token."""


def _digest(token: str | None) -> bytes:
    return hashlib.sha256((token or "").encode()).digest()


class Memory:
    """What is received goes there; it grows, and is used again."""

    def __init__(self) -> None:
        self._octets = np.empty(0, np.uint8)

    def of(self, size: int) -> Octets:
        if size > self._octets.size:
            self._octets = np.zeros(size, np.uint8)
        return self._octets[:size]


def send(connection: socket.socket, parts: Sequence[memoryview]) -> None:
    """All of these, gathered by the kernel."""
    left = list(parts)
    while left:
        sent = connection.sendmsg(left[:_AT_A_TIME])
        while left and sent >= left[0].nbytes:
            sent -= left.pop(0).nbytes
        if sent:
            left[0] = left[0][sent:]


def _talk(connection: socket.socket, token: str | None, congestion: str) -> None:
    """Serves one client until it hangs up."""
    with connection, suppress(OSError):
        tune(connection, congestion)
        shown, head, memory = bytearray(32), bytearray(_HEAD.size), Memory()
        connection.settimeout(_PROOF_SECONDS)
        if not receive_into(connection, memoryview(shown)):
            return
        if not hmac.compare_digest(bytes(shown), _digest(token)):
            return
        connection.settimeout(None)
        connection.sendall(b"\1")
        while receive_into(connection, memoryview(head)):
            echoes, reads, size = _HEAD.unpack(head)
            if not 0 <= size <= MOST_BYTES:
                return
            payload = memory.of(size)
            if not receive_into(connection, payload.data):
                return
            found = answer([payload], reads)
            if echoes:
                connection.sendall(payload.data)
            else:
                connection.sendall(ANSWER.pack(found))


def _accept(listener: socket.socket, token: str | None, congestion: str) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_talk, args=(connection, token, congestion), daemon=True).start()


class _Client(Client):
    def __init__(self, connection: socket.socket, congestion: str) -> None:
        self._connection = connection
        self._congestion = congestion
        self._memory = Memory()

    def path(self) -> str:
        return "tcp"

    def note(self) -> str:
        return f"limit: congestion control {self._congestion or congestion_control()}"

    @contextmanager
    def calls(self, request: Request) -> Iterator[Sequence[Call]]:
        calls = {
            payload: self._call(request, buffers(payload)) for payload in set(request.payloads)
        }
        yield [calls[payload] for payload in request.payloads]

    @contextmanager
    def begun(self, request: Request) -> Iterator[Sequence[Begin]]:
        begins = {
            payload: self._begin(request, buffers(payload)) for payload in set(request.payloads)
        }
        yield [begins[payload] for payload in request.payloads]

    def _begin(self, request: Request, sent: Sequence[Octets]) -> Begin:
        """Nobody reads echoes while a payload is sent: both ends could wait for each other."""
        assert request.procedure == "acknowledge"
        connection, parts = self._connection, _parts(request, sent)
        told = memoryview(bytearray(ANSWER.size))

        def end() -> int:
            received(receive_into(connection, told))
            return int(ANSWER.unpack(told)[0])

        def begin() -> Call:
            send(connection, parts)
            return end

        return begin

    def _call(self, request: Request, sent: Sequence[Octets]) -> Call:
        connection, memory, reads = self._connection, self._memory, request.reads
        size, parts = sum(buffer.size for buffer in sent), _parts(request, sent)
        told = memoryview(bytearray(ANSWER.size))

        def echo() -> int:
            send(connection, parts)
            back = memory.of(size)
            received(receive_into(connection, back.data))
            return answer([back], reads)

        def acknowledged() -> int:
            send(connection, parts)
            received(receive_into(connection, told))
            return int(ANSWER.unpack(told)[0])

        return echo if request.procedure == "echo" else acknowledged


def _parts(request: Request, sent: Sequence[Octets]) -> list[memoryview]:
    size = sum(buffer.size for buffer in sent)
    head = memoryview(_HEAD.pack(request.procedure == "echo", request.reads, size))
    return [head, *(buffer.data for buffer in sent)]


class Sockets(Contender):
    role = "limit"
    transports = ("tcp",)
    joins = True
    modes = frozenset({"non-serialized"})
    pipelines: frozenset[Procedure] = frozenset({"acknowledge"})

    def __init__(self, congestion: str = "") -> None:
        self.congestion = congestion

    def variants(self) -> dict[str, Sockets]:
        """With the congestion control of tensorwire's links."""
        links = same_host_congestion_control()
        return {f"sockets-{links}": Sockets(links)}

    def viable(self, transport: str) -> str | None:
        try:
            with socket.socket() as probe:
                tune(probe, self.congestion)
        except OSError as error:
            return f"congestion control {self.congestion}: {error.strerror}"
        return None

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        with socket.create_server((host, port)) as listener:
            arguments = (listener, token, self.congestion)
            threading.Thread(target=_accept, args=arguments, daemon=True).start()
            yield f"{host}:{listener.getsockname()[1]}"

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            tune(connection, self.congestion)
            connection.sendall(_digest(token))
            if not receive_into(connection, memoryview(bytearray(1))):
                raise ConnectionError(
                    f"{address} took not this token: give the same --token-file as there"
                )
            yield _Client(connection, self.congestion)
