# SPDX-License-Identifier: Apache-2.0
"""NIXL over UCX: READ of registered memory, by descriptors that were prepared; of many parts they
are rows of an array, the fastest form that NIXL takes. The owner has to poll meanwhile. It has no
atomics."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorwire.bench.contenders.rpc.nixl import STOP, UCX_TRANSPORTS, Memory
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.remote.contender import (
    PARTS,
    Client,
    Contender,
    Measured,
    Owner,
    preparing,
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
            try:
                if work.case == "prepare":
                    yield preparing(work, out, lambda: _reads(memory, _prepared(memory, work)))
                else:
                    run, release = _reads(memory, _prepared(memory, work))
                    try:
                        yield reading(work, out, run)
                    finally:
                        release()
            finally:
                memory.agent.send_notif(memory.peer, STOP)


def _prepared(memory: Memory, work: Work) -> Any:
    if work.case == "read":
        return memory.transfer("READ")
    ((here, _, _),), ((there, _, _),) = memory.regions, memory.peer_regions
    length = work.size // PARTS[work.case]
    return memory.transfer(
        "READ", _parts(work, here, length, length), _parts(work, there, length, 2 * length)
    )


def _parts(work: Work, begin: int, length: int, step: int) -> npt.NDArray[np.int64]:
    found = np.zeros((PARTS[work.case], 3), np.int64)
    found[:, 0] = begin + step * np.arange(len(found))
    found[:, 1] = length
    return found


def _reads(memory: Memory, handle: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    """What starts it and waits for its end, and what gives it up."""
    return lambda: memory.wait(handle, memory.agent.transfer(handle)), handle.release


class Nixl(Contender):
    transports = ("shm", "tcp")
    packages = ("nixl",)
    cases = frozenset({"read", "batch", "prepare"})

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
