# SPDX-License-Identifier: Apache-2.0
"""NIXL over UCX: READ of registered memory, by descriptors that were prepared. The owner has to
poll meanwhile. It has no atomics."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np

from tensorwire.bench.contenders.rpc.nixl import STOP, UCX_TRANSPORTS, Memory
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.remote.contender import (
    Client,
    Contender,
    Measured,
    Owner,
    parts,
    reading,
    source,
)


class _Owner(Owner):
    def __init__(self, transport: str, listener: socket.socket) -> None:
        self.transport = transport
        self.listener = listener
        self.memory: Memory | None = None
        host, port = listener.getsockname()
        self.address = f"{host}:{port}"

    def prepare(self, work: Work) -> None:
        self.memory = None
        self.memory = Memory(self.transport, source(work))

    def attend(self) -> None:
        memory = self.memory
        assert memory is not None  # prepare() comes first
        connection, _ = self.listener.accept()
        with connection:
            memory.exchange(connection)
            memory.notification()  # polls until the client has ended
            connection.recv(1)


class _Client(Client):
    def __init__(self, transport: str, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.transport = transport
        self.target = host, int(port)

    def path(self) -> str:
        # UCX does not say what it took: it is given this one transport and fails without it.
        return self.transport

    def note(self) -> str:
        return f"UCX_TLS={os.environ['UCX_TLS']}; both ends poll"

    @contextmanager
    def access(self, work: Work) -> Iterator[Measured]:
        out = np.zeros(work.size // 4, np.float32)
        memory = Memory(self.transport, out)
        with socket.create_connection(self.target) as connection:
            memory.exchange(connection)
            handle = _prepared(memory, work)
            try:
                yield reading(work, out, _read(memory, handle))
            finally:
                memory.agent.send_notif(memory.peer, STOP)
                handle.release()


def _prepared(memory: Memory, work: Work) -> Any:
    if work.case == "read":
        return memory.transfer("READ")
    ((here, _, _),), ((there, _, _),) = memory.regions, memory.peer_regions
    sources, targets = parts(work)
    return memory.transfer(
        "READ",
        [(here + part.start, part.stop - part.start, 0) for part in targets],
        [(there + part.start, part.stop - part.start, 0) for part in sources],
    )


def _read(memory: Memory, handle: Any) -> Callable[[], None]:
    return lambda: memory.wait(handle, memory.agent.transfer(handle))


class Nixl(Contender):
    transports = ("shm", "tcp")
    packages = ("nixl",)
    cases = frozenset({"read", "batch"})

    def viable(self, transport: str) -> str | None:
        return None if find_spec("nixl") else "nixl is not installed: pip install nixl"

    @contextmanager
    def own(self, transport: str) -> Iterator[Owner]:
        os.environ["UCX_TLS"] = UCX_TRANSPORTS[transport]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield _Owner(transport, listener)

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        os.environ["UCX_TLS"] = UCX_TRANSPORTS[transport]
        yield _Client(transport, address)
