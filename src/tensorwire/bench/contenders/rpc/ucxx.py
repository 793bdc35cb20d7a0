# SPDX-License-Identifier: Apache-2.0
"""UCX by its own Python package: tagged messages into memory that is used again; no status, no
metadata, no deadlines. Who waits sleeps, and with ``ucxx-polling`` polls. A plain socket tells each
end where the other one is, so that UCX listens for nobody else, and its TCP is that of loopback
only."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tensorwire.bench.contenders.rpc.sockets import receive_into, received
from tensorwire.bench.harness.work import Array, Work, answer, payload
from tensorwire.bench.suites.rpc.contender import Call, Client, Contender, Server, Stream

SETTINGS: Final = {
    "shm": {"TLS": "sm,self"},
    "tcp": {"TLS": "tcp,self", "NET_DEVICES": "lo"},
}
"""Of UCX, by transport; it fails without that one."""
TO_SERVER: Final = 1
TO_CLIENT: Final = 2
INSTALL: Final = "pip install --no-deps ucxx-cu12 libucxx-cu12 'libucx-cu12<1.22'"
"""Without what they depend on, which is for memory of CUDA and excludes PyTorch's packages."""

Word = npt.NDArray[np.int64]


def word(value: int) -> Word:
    return np.array([value], np.int64)


STOP: Final = 0
"""The first word of a message after which no more come: no payload begins with it."""
ASK: Final = word(1)


class Ucx:
    """A worker of this process."""

    def __init__(self, transport: str, polls: bool) -> None:
        import libucx

        libucx.load_library()  # else ucxx asks a package of CUDA to do so
        from ucxx._lib import arr, libucxx

        self._ucx: Any = libucxx
        self._wrapped: Any = arr.Array
        features = libucxx.Feature.TAG, libucxx.Feature.WAKEUP
        self._worker = libucxx.UCXWorker(libucxx.UCXContext(SETTINGS[transport], features))
        self._progress = self._worker.progress
        if not polls:
            self._worker.init_blocking_progress_mode()
            self._progress = self._worker.progress_worker_event
        self._endpoint: Any = None

    def join(self, connect: Callable[[], socket.socket]) -> None:
        """The process at the other end of a connection, which does the same. Once, for as long as
        both live: to close an endpoint whose other end does not poll takes UCX a second."""
        if self._endpoint is not None:
            return
        own = self.about()
        with connect() as connection:
            connection.sendall(word(len(own)).tobytes() + own)
            head = word(0)
            received(receive_into(connection, head.view(np.uint8).data))
            told = bytearray(int(head[0]))
            received(receive_into(connection, memoryview(told)))
        self.meet(bytes(told))

    def about(self) -> bytes:
        """What the process at the other end has to know of this one."""
        return bytes(self._ucx.UCXAddress.create_from_worker(self._worker).tobytes())

    def meet(self, about: bytes) -> None:
        """about: of the process at the other end."""
        address = self._ucx.UCXAddress.create_from_buffer(about)
        make = self._ucx.UCXEndpoint.create_from_worker_address
        self._endpoint = make(self._worker, address, False)

    def wrapped(self, array: Any) -> Any:
        """As UCX takes it, with the same memory."""
        return self._wrapped(array)

    def sending(self, wrapped: Any, tag: int) -> Any:
        """What ``wait`` waits for."""
        return self._endpoint.tag_send(wrapped, self._ucx.UCXXTag(tag))

    def receiving(self, wrapped: Any, tag: int) -> Any:
        """What ``wait`` waits for."""
        return self._endpoint.tag_recv(wrapped, self._ucx.UCXXTag(tag))

    def send(self, array: Array | Word, tag: int) -> None:
        self.wait(self.sending(self._wrapped(array), tag))

    def receive(self, array: Array | Word, tag: int) -> None:
        self.wait(self.receiving(self._wrapped(array), tag))

    def wait(self, request: Any) -> None:
        while not request.completed:
            self._progress()
        request.check_error()


class _Server(Server):
    def __init__(self, ucx: Ucx, listener: socket.socket) -> None:
        self.ucx = ucx
        self.listener = listener
        self.work = Work("request", 0)
        host, port = listener.getsockname()
        self.address = f"{host}:{port}"

    def prepare(self, work: Work) -> None:
        self.work = work

    def attend(self) -> None:
        serve = {"request": self._take, "pull": self._give, "stream": self._count}[self.work.case]
        array, asked = payload(self.work.size), word(0)
        self.ucx.join(lambda: self.listener.accept()[0])
        while serve(array, asked):
            pass

    def _take(self, array: Array, asked: Word) -> bool:
        self.ucx.receive(array, TO_SERVER)
        if not array.view(np.int64)[0]:
            return False
        self.ucx.send(word(answer(array, self.work.reads)), TO_CLIENT)
        return True

    def _give(self, array: Array, asked: Word) -> bool:
        self.ucx.receive(asked, TO_SERVER)
        if asked[0]:
            self.ucx.send(array, TO_CLIENT)
        return bool(asked[0])

    def _count(self, array: Array, asked: Word) -> bool:
        self.ucx.receive(asked, TO_SERVER)
        for _ in range(asked[0]):
            self.ucx.receive(array, TO_SERVER)
        if asked[0]:
            self.ucx.send(asked, TO_CLIENT)
        return bool(asked[0])


class _Client(Client):
    def __init__(self, ucx: Ucx, transport: str, address: str, note: str) -> None:
        host, port = address.rsplit(":", 1)
        self.transport = transport
        self.target = host, int(port)
        self.ucx = ucx
        self._note = note

    def path(self) -> str:
        # UCX does not say what it took: it is given this one transport and fails without it.
        return self.transport

    def note(self) -> str:
        return self._note

    @contextmanager
    def _attended(self) -> Iterator[Ucx]:
        self.ucx.join(lambda: socket.create_connection(self.target))
        try:
            yield self.ucx
        finally:
            self.ucx.send(word(STOP), TO_SERVER)

    @contextmanager
    def call(self, work: Work) -> Iterator[Call]:
        array, result, reads = payload(work.size), word(1), work.reads
        with self._attended() as ucx:

            def push() -> int:
                ucx.send(array, TO_SERVER)
                ucx.receive(result, TO_CLIENT)
                return int(result[0])

            def pull() -> int:
                ucx.send(ASK, TO_SERVER)
                ucx.receive(array, TO_CLIENT)
                return answer(array, reads)

            if work.case == "pull":
                array[:] = 0
            yield pull if work.case == "pull" else push

    @contextmanager
    def stream(self, work: Work) -> Iterator[Stream]:
        array, result = payload(work.size), word(0)
        with self._attended() as ucx:

            def stream(count: int) -> int:
                ucx.send(word(count), TO_SERVER)
                for _ in range(count):
                    ucx.send(array, TO_SERVER)
                ucx.receive(result, TO_CLIENT)
                return int(result[0])

            yield stream


class Ucxx(Contender):
    transports = ("shm", "tcp")
    packages = ("ucxx-cu12", "libucx-cu12")
    concurrent = False

    def __init__(self, polls: bool = False) -> None:
        self.polls = polls

    def variants(self) -> dict[str, Ucxx]:
        return {"ucxx-polling": Ucxx(polls=True)}

    def viable(self, transport: str) -> str | None:
        if all(map(find_spec, ("ucxx", "libucxx", "libucx"))):
            return None
        return f"ucxx is not installed: {INSTALL}"

    def supports(self, work: Work) -> bool:
        return super().supports(work) and work.size > 0

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield _Server(Ucx(transport, self.polls), listener)

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        how = "poll" if self.polls else "sleep while they wait"
        note = f"UCX_TLS={SETTINGS[transport]['TLS']}; both ends {how}"
        yield _Client(Ucx(transport, self.polls), transport, address, note)
