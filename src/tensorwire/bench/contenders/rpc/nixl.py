# SPDX-License-Identifier: Apache-2.0
"""NIXL over UCX: one-sided WRITE with a notification and READ, between registered memory that is
used again. Both ends poll while they wait; no status, no metadata, no deadlines, no streams."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np

from tensorwire.bench.contenders.rpc.sockets import receive_into, received
from tensorwire.bench.harness.work import Array, Work, answer, payload
from tensorwire.bench.suites.rpc.contender import ANSWER, Call, Client, Contender, Server

STOP = b"stop"
TAKE = b"take"
UCX_TRANSPORTS = {"tcp": "tcp", "shm": "posix,sysv,self"}


class Memory:
    """A NIXL agent with one registered array, told about the other end's."""

    def __init__(self, transport: str, array: Array) -> None:
        from nixl._api import nixl_agent, nixl_agent_config

        self.array = array
        self.agent: Any = nixl_agent(
            uuid.uuid4().hex, nixl_agent_config(enable_prog_thread=False, backends=[])
        )
        # UCX has no failure detection over shared memory and refuses to be asked for it there.
        handling = "none" if transport == "shm" else "peer"
        self.agent.create_backend("UCX", {"ucx_error_handling_mode": handling})
        self.region = (array.ctypes.data, array.nbytes, 0)
        self.agent.register_memory([(*self.region, "")], "DRAM")
        self.peer = ""
        self.peer_region = (0, 0, 0)

    def exchange(self, connection: socket.socket) -> None:
        """Tells the other end about this one's memory, and the other way round."""
        metadata = self.agent.get_agent_metadata()
        address, nbytes, _ = self.region
        connection.sendall(np.array([address, nbytes, len(metadata)]).tobytes() + metadata)
        head = np.zeros(3, np.int64)
        received(receive_into(connection, head.view(np.uint8).data))
        body = bytearray(int(head[2]))
        received(receive_into(connection, memoryview(body)))
        name = self.agent.add_remote_agent(bytes(body))
        self.peer = name.decode() if isinstance(name, bytes) else name
        self.peer_region = (int(head[0]), int(head[1]), 0)

    def transfer(self, operation: str) -> Any:
        local = self.agent.get_xfer_descs([self.region], "DRAM")
        remote = self.agent.get_xfer_descs([self.peer_region], "DRAM")
        return self.agent.initialize_xfer(operation, local, remote, self.peer)

    def wait(self, handle: Any, state: str) -> None:
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        if state != "DONE":
            raise ConnectionError(f"NIXL's transfer ended as {state}")

    def notification(self) -> bytes:
        while True:
            found = self.agent.get_new_notifs()
            for messages in found.values():
                if messages:
                    return bytes(messages[0])


class _Server(Server):
    def __init__(self, transport: str, listener: socket.socket) -> None:
        self.transport = transport
        self.listener = listener
        self.memory: Memory | None = None
        self.work = Work("request", 0)
        host, port = listener.getsockname()
        self.address = f"{host}:{port}"

    def prepare(self, work: Work) -> None:
        self.work = work
        self.memory = None
        array = payload(work.size)
        if work.case == "request":
            array[:] = 0
        self.memory = Memory(self.transport, array)

    def attend(self) -> None:
        memory, reads = self.memory, self.work.reads
        assert memory is not None  # prepare() comes first
        connection, _ = self.listener.accept()
        with connection:
            memory.exchange(connection)
            while memory.notification() == TAKE:
                result = answer(memory.array, reads)
                memory.agent.send_notif(memory.peer, ANSWER.pack(result))
            connection.recv(1)  # this end serves the other's last transfer until it has gone


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
    def call(self, work: Work) -> Iterator[Call]:
        memory, reads = Memory(self.transport, payload(work.size)), work.reads
        if work.case == "pull":
            memory.array[:] = 0
        with socket.create_connection(self.target) as connection:
            memory.exchange(connection)
            handle = memory.transfer("READ" if work.case == "pull" else "WRITE")
            agent = memory.agent

            def push() -> int:
                memory.wait(handle, agent.transfer(handle, TAKE))
                return int(ANSWER.unpack(memory.notification())[0])

            def pull() -> int:
                memory.wait(handle, agent.transfer(handle))
                return answer(memory.array, reads)

            try:
                yield pull if work.case == "pull" else push
            finally:
                agent.send_notif(memory.peer, STOP)
                handle.release()


class Nixl(Contender):
    transports = ("shm", "tcp")
    packages = ("nixl",)
    cases = frozenset({"request", "pull"})
    concurrent = False

    def viable(self, transport: str) -> str | None:
        return None if find_spec("nixl") else "nixl is not installed: pip install nixl"

    def supports(self, work: Work) -> bool:
        return super().supports(work) and work.size > 0

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        os.environ["UCX_TLS"] = UCX_TRANSPORTS[transport]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield _Server(transport, listener)

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        os.environ["UCX_TLS"] = UCX_TRANSPORTS[transport]
        yield _Client(transport, address)
