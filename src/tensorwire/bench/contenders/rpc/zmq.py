# SPDX-License-Identifier: Apache-2.0
"""pyzmq: REQ to ROUTER for calls and DEALER to ROUTER for streams, arrays handed over and received
without a copy where ZeroMQ can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from tensorwire.bench.harness.work import Work, answer, payload, view
from tensorwire.bench.suites.rpc.contender import ANSWER, Call, Client, Contender, Server, Stream

LINGER_MS = 0
COPY_THRESHOLD_BYTES = 65536


def copied(work: Work) -> bool:
    """Below ZeroMQ's own threshold a copy is cheaper than handing the memory over."""
    return work.size < COPY_THRESHOLD_BYTES


@contextmanager
def routing(where: str, arrived: Callable[[Any], None], most_bytes: int = -1) -> Iterator[str]:
    """A ROUTER socket while the context is open; yields where it is bound. arrived: called with it,
    in a thread of its own, whenever there is a message to receive. most_bytes: of a frame; who
    sends more is hung up on."""
    import zmq

    with (
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as socket,
        context.socket(zmq.PAIR) as control,
        context.socket(zmq.PAIR) as stop,
    ):
        socket.linger = LINGER_MS
        socket.maxmsgsize = most_bytes
        socket.bind(where)
        control.bind("inproc://stop")
        stop.connect("inproc://stop")
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(control, zmq.POLLIN)

        def attend() -> None:
            while control not in dict(poller.poll()):
                arrived(socket)

        thread = threading.Thread(target=attend)
        thread.start()
        try:
            yield socket.last_endpoint.decode()
        finally:
            stop.send(b"")
            thread.join()


class _Server(Server):
    def __init__(self) -> None:
        self.work = Work("request", 0)
        self.reply = payload(0)

    def prepare(self, work: Work) -> None:
        self.reply = payload(work.size if work.case == "pull" else 0)
        self.work = work

    def arrived(self, socket: Any) -> None:
        """Answers. A stream is announced by its length."""
        *envelope, last = socket.recv_multipart(copy=False)
        work = self.work
        if work.case == "request":
            message = ANSWER.pack(answer(view(last.buffer), work.reads))
            socket.send_multipart([*envelope, message])
        elif work.case == "pull":
            socket.send_multipart([*envelope, self.reply], copy=copied(work))
        else:
            (count,) = ANSWER.unpack(last.buffer)
            copy = copied(work)
            for _ in range(count):
                socket.recv_multipart(copy=copy)
            socket.send_multipart([*envelope, ANSWER.pack(count)])


class _Client(Client):
    def __init__(self, context: Any, address: str) -> None:
        self.context = context
        self.address = address

    def path(self) -> str:
        return self.address.partition(":")[0]

    @contextmanager
    def connection(self, kind: int) -> Iterator[Any]:
        with self.context.socket(kind) as socket:
            socket.linger = LINGER_MS
            socket.connect(self.address)
            yield socket

    @contextmanager
    def call(self, work: Work) -> Iterator[Call]:
        import zmq

        with self.connection(zmq.REQ) as socket:
            array = payload(work.size if work.case == "request" else 8)
            reads, pulls = work.reads, work.case == "pull"
            copy = copied(work)

            def call() -> int:
                socket.send(array, copy=copy)
                frame = socket.recv(copy=False)
                if pulls:
                    return answer(view(frame.buffer), reads)
                return int(ANSWER.unpack(frame.buffer)[0])

            yield call

    @contextmanager
    def stream(self, work: Work) -> Iterator[Stream]:
        import zmq

        with self.connection(zmq.DEALER) as socket:
            copy = copied(work)
            array = payload(work.size)
            message = array.tobytes() if copy else array

            def stream(count: int) -> int:
                socket.send(ANSWER.pack(count))
                for _ in range(count):
                    socket.send(message, copy=copy)
                return int(ANSWER.unpack(socket.recv())[0])

            yield stream


class Zmq(Contender):
    transports = ("tcp", "ipc")
    packages = ("pyzmq",)

    def viable(self, transport: str) -> str | None:
        return None if find_spec("zmq") else "pyzmq is not installed: pip install pyzmq"

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        server = _Server()
        where = "tcp://127.0.0.1:*" if transport == "tcp" else "ipc://*"
        with routing(where, server.arrived) as server.address:
            yield server

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        import zmq

        with zmq.Context() as context:
            yield _Client(context, address)
