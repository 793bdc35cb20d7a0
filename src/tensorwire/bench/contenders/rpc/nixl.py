# SPDX-License-Identifier: Apache-2.0
"""NIXL over UCX: one-sided WRITE with a notification and READ, between registered memory that is
used again. Both ends poll while they wait; no status, no metadata, no deadlines, no streams."""

from __future__ import annotations

import os
import socket
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorwire.bench.contenders.rpc.sockets import receive_into, received
from tensorwire.bench.harness.work import Work, answer, payload
from tensorwire.bench.suites.rpc.contender import ANSWER, Call, Client, Contender, Server

STOP = b"stop"
TAKE = b"take"
UCX_TRANSPORTS = {"tcp": "tcp", "shm": "posix,sysv,cma,self"}
"""What UCX may take: within a host all that it has. Large messages go by cma, which copies once."""

Region = tuple[int, int, int]
"""Address, bytes, and the number of the device: 0 is the host."""
Regions = Sequence[Region] | npt.NDArray[np.int64]
"""Or an array with such rows, which NIXL takes faster."""


class Memory:
    """A NIXL agent with registered arrays, told about another end's."""

    def __init__(self, transport: str, *arrays: npt.NDArray[Any]) -> None:
        from nixl._api import nixl_agent, nixl_agent_config

        self.arrays = arrays
        self.agent: Any = nixl_agent(
            uuid.uuid4().hex, nixl_agent_config(enable_prog_thread=False, backends=[])
        )
        # UCX has no failure detection over shared memory and refuses to be asked for it there.
        handling = "none" if transport == "shm" else "peer"
        self.agent.create_backend("UCX", {"ucx_error_handling_mode": handling})
        self.regions: list[Region] = [(each.ctypes.data, each.nbytes, 0) for each in arrays]
        self.agent.register_memory([(*region, "") for region in self.regions], "DRAM")
        self.peer = ""
        self.peer_regions: list[Region] = []
        self._notifications: deque[bytes] = deque()

    def about(self) -> bytes:
        """What another end has to know of this one's memory."""
        head = np.array([len(self.regions), *chain(*self.regions)], np.int64)
        return head.tobytes() + bytes(self.agent.get_agent_metadata())

    def meet(self, about: bytes) -> None:
        """about: of the other end."""
        (count,) = np.frombuffer(about, np.int64, 1)
        regions = np.frombuffer(about, np.int64, 3 * count, 8)
        self.peer_regions = list(zip(*regions.reshape(-1, 3).T.tolist(), strict=True))
        name = self.agent.add_remote_agent(about[8 + regions.nbytes :])
        self.peer = name.decode() if isinstance(name, bytes) else name

    def exchange(self, connection: socket.socket) -> None:
        """Tells the other end about this one's memory, and the other way round."""
        about = self.about()
        connection.sendall(len(about).to_bytes(8, "little") + about)
        head = bytearray(8)
        received(receive_into(connection, memoryview(head)))
        body = bytearray(int.from_bytes(head, "little"))
        received(receive_into(connection, memoryview(body)))
        self.meet(bytes(body))

    def transfer(
        self, operation: str, local: Regions | None = None, remote: Regions | None = None
    ) -> Any:
        """Prepared: of all, or of parts here and there."""
        return self.agent.initialize_xfer(
            operation,
            self.agent.get_xfer_descs(self.regions if local is None else local, "DRAM"),
            self.agent.get_xfer_descs(self.peer_regions if remote is None else remote, "DRAM"),
            self.peer,
        )

    def wait(self, handle: Any, state: str) -> None:
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        if state != "DONE":
            raise ConnectionError(f"NIXL's transfer ended as {state}")

    def notification(self) -> bytes:
        """The next one: polls until it is there."""
        while not self._notifications:
            for messages in self.agent.get_new_notifs().values():
                self._notifications.extend(map(bytes, messages))
        return self._notifications.popleft()


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
                result = answer(memory.arrays[0], reads)
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
        array, reads = payload(work.size), work.reads
        if work.case == "pull":
            array[:] = 0
        memory = Memory(self.transport, array)
        with socket.create_connection(self.target) as connection:
            memory.exchange(connection)
            handle = memory.transfer("READ" if work.case == "pull" else "WRITE")
            agent = memory.agent

            def push() -> int:
                memory.wait(handle, agent.transfer(handle, TAKE))
                return int(ANSWER.unpack(memory.notification())[0])

            def pull() -> int:
                memory.wait(handle, agent.transfer(handle))
                return answer(array, reads)

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
