# SPDX-License-Identifier: Apache-2.0
"""Limit line: plain Python TCP sockets, one connection for each caller, into memory that is used
again; no metadata, no status, no framing (both ends know the size beforehand).

``sockets`` has the congestion control that the host sets, ``sockets-<name>`` another one.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tensorwire.bench.harness.work import Array, Work, answer, payload
from tensorwire.bench.suites.rpc.contender import ANSWER, Call, Client, Contender, Server, Stream
from tensorwire.observe.host import congestion_control, same_host_congestion_control


def tune(connection: socket.socket, congestion: str) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if congestion:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())


def receive_into(connection: socket.socket, target: memoryview) -> bool:
    """Fills ``target``; False when the other end has closed before."""
    while target:
        count = connection.recv_into(target, 0, socket.MSG_WAITALL)
        if count == 0:
            return False
        target = target[count:]
    return True


def octets(array: Array) -> memoryview:
    return array.view(np.uint8).data


class _Server(Server):
    def __init__(self, listener: socket.socket, congestion: str) -> None:
        self.listener = listener
        self.congestion = congestion
        self.work = Work("request", 0)
        host, port = listener.getsockname()
        self.address = f"{host}:{port}"

    def prepare(self, work: Work) -> None:
        self.work = work

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=(connection,), daemon=True).start()

    def talk(self, connection: socket.socket) -> None:
        work = self.work
        with connection:
            tune(connection, self.congestion)
            if work.case == "request":
                self.take(connection, work)
            elif work.case == "pull":
                self.give(connection, work)
            else:
                self.count(connection, work)

    def take(self, connection: socket.socket, work: Work) -> None:
        array = np.zeros(work.size // 4, np.float32)
        target = octets(array)
        while receive_into(connection, target):
            connection.sendall(ANSWER.pack(answer(array, work.reads)))

    def give(self, connection: socket.socket, work: Work) -> None:
        source = octets(payload(work.size))
        request = memoryview(bytearray(8))
        while receive_into(connection, request):
            connection.sendall(source)

    def count(self, connection: socket.socket, work: Work) -> None:
        target = octets(np.zeros(work.size // 4, np.float32))
        announced = memoryview(bytearray(ANSWER.size))
        while receive_into(connection, announced):
            (count,) = ANSWER.unpack(announced)
            received = 0
            while received < count and receive_into(connection, target):
                received += 1
            connection.sendall(ANSWER.pack(received))


class _Client(Client):
    def __init__(self, address: str, congestion: str) -> None:
        host, port = address.rsplit(":", 1)
        self.target = host, int(port)
        self.congestion = congestion

    def path(self) -> str:
        return "tcp"

    def note(self) -> str:
        return f"limit: congestion control {self.congestion or congestion_control()}"

    def connection(self) -> socket.socket:
        connection = socket.create_connection(self.target)
        tune(connection, self.congestion)
        return connection

    @contextmanager
    def call(self, work: Work) -> Iterator[Call]:
        with self.connection() as connection:
            if work.case == "request":
                source = octets(payload(work.size))
                target = memoryview(bytearray(ANSWER.size))

                def call() -> int:
                    connection.sendall(source)
                    received(receive_into(connection, target))
                    return int(ANSWER.unpack(target)[0])

            else:
                array = np.zeros(work.size // 4, np.float32)
                target = octets(array)

                def call() -> int:
                    connection.sendall(b"\0" * 8)
                    received(receive_into(connection, target))
                    return answer(array, work.reads)

            yield call

    @contextmanager
    def stream(self, work: Work) -> Iterator[Stream]:
        with self.connection() as connection:
            source = octets(payload(work.size))
            target = memoryview(bytearray(ANSWER.size))

            def stream(count: int) -> int:
                connection.sendall(ANSWER.pack(count))
                for _ in range(count):
                    connection.sendall(source)
                received(receive_into(connection, target))
                return int(ANSWER.unpack(target)[0])

            yield stream


def received(whole: bool) -> None:
    if not whole:
        raise ConnectionError("the other end closed the connection in the middle of a message")


class Sockets(Contender):
    role = "limit"
    transports = ("tcp",)

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

    def supports(self, work: Work) -> bool:
        return super().supports(work) and work.size > 0

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = _Server(listener, self.congestion)
            threading.Thread(target=server.accept, daemon=True).start()
            yield server

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        yield _Client(address, self.congestion)
