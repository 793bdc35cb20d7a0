# SPDX-License-Identifier: Apache-2.0
"""Mooncake's transfer engine over TCP: synchronous one-sided writes and reads of registered memory
that is used again. It has no messages of its own, so that each end tells the other one by a plain
socket, as programs with it do by sockets of theirs. It listens at all interfaces, and lets anybody
write, so that it runs in a network namespace of its own."""

from __future__ import annotations

import shlex
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

from tensorwire.bench.contenders.rpc.sockets import receive_into, received
from tensorwire.bench.harness.work import Array, Work, answer, payload
from tensorwire.bench.suites.rpc.contender import ANSWER, Call, Client, Contender, Server

HOST: Final = "127.0.0.1"
TAKE: Final = b"take...."
"""As long as an answer."""
WHERE: Final = struct.Struct("<HQ")
"""The port of an engine, and the address of its array."""


ALONE: Final = ("unshare", "--map-root-user", "--net", "sh", "-c")
"""Ahead of a script, which then is in a namespace without a network; it needs no rights."""


class Memory:
    """An engine with one registered array. Raises ConnectionError where it cannot be had."""

    def __init__(self) -> None:
        from mooncake.engine import TransferEngine

        self.engine: Any = TransferEngine()
        if self.engine.initialize(HOST, "P2PHANDSHAKE", "tcp", ""):
            raise ConnectionError("Mooncake's engine did not start")
        self.array: Array = payload(0)

    def register(self, array: Array) -> None:
        """Instead of the one before."""
        self.release()
        if self.engine.register_memory(array.ctypes.data, array.nbytes):
            raise ConnectionError("Mooncake did not register the memory")
        self.array = array

    def release(self) -> None:
        if self.array.nbytes:
            self.engine.unregister_memory(self.array.ctypes.data)
            self.array = payload(0)

    def where(self) -> bytes:
        return WHERE.pack(self.engine.get_rpc_port(), self.array.ctypes.data)


class _Server(Server):
    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.memory = Memory()
        self.work = Work("request", 0)
        host, port = listener.getsockname()
        self.address = f"{host}:{port}"

    def prepare(self, work: Work) -> None:
        self.work = work
        array = payload(work.size)
        if work.case == "request":
            array[:] = 0
        self.memory.register(array)

    def attend(self) -> None:
        connection, _ = self.listener.accept()
        told = memoryview(bytearray(len(TAKE)))
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(self.memory.where())
            while receive_into(connection, told):
                connection.sendall(ANSWER.pack(answer(self.memory.array, self.work.reads)))
        self.memory.release()


class _Client(Client):
    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.target = host, int(port)
        self.memory = Memory()

    def path(self) -> str:
        return "tcp"  # the engine was given this one protocol

    def note(self) -> str:
        return "one-sided; ends tell each other by a plain socket"

    @contextmanager
    def call(self, work: Work) -> Iterator[Call]:
        array = payload(work.size)
        if work.case == "pull":
            array[:] = 0
        self.memory.register(array)
        engine, local, size, reads = self.memory.engine, array.ctypes.data, work.size, work.reads
        told = memoryview(bytearray(ANSWER.size))
        with socket.create_connection(self.target) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            where = memoryview(bytearray(WHERE.size))
            received(receive_into(connection, where))
            port, remote = WHERE.unpack(where)
            peer = f"{HOST}:{port}"

            def push() -> int:
                done(engine.transfer_sync_write(peer, local, remote, size))
                connection.sendall(TAKE)
                received(receive_into(connection, told))
                return int(ANSWER.unpack(told)[0])

            def pull() -> int:
                done(engine.transfer_sync_read(peer, local, remote, size))
                return answer(array, reads)

            yield pull if work.case == "pull" else push
        self.memory.release()


def done(code: int) -> None:
    if code:
        raise ConnectionError(f"Mooncake's transfer ended with code {code}")


@cache
def _why_not_alone() -> str | None:
    try:
        done = subprocess.run([*ALONE, "ip link set lo up"], capture_output=True, text=True)
    except OSError as error:
        return f"it runs in a network namespace of its own, which needs util-linux: {error}"
    if done.returncode:
        return f"no network namespace can be made for it: {done.stderr.strip()}"
    return None


class Mooncake(Contender):
    transports = ("tcp",)
    packages = ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine")
    cases = frozenset({"request", "pull"})
    concurrent = False

    def viable(self, transport: str) -> str | None:
        if not (find_spec("mooncake") and find_spec("mooncake.engine")):
            return "Mooncake is not installed: pip install mooncake-transfer-engine-non-cuda"
        return _why_not_alone()

    def launch(self, server: Sequence[str], client: Sequence[str]) -> list[list[str]]:
        both = f"{shlex.join(server)} & {shlex.join(client)} & wait"
        return [[*ALONE, f"ip link set lo up || exit; {both}"]]

    def supports(self, work: Work) -> bool:
        return super().supports(work) and work.size > 0

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        with socket.create_server((HOST, 0)) as listener:
            yield _Server(listener)

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        yield _Client(address)
