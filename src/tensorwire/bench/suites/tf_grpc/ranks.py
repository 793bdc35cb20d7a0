# SPDX-License-Identifier: Apache-2.0
"""Libraries between ranks, which send and receive arrays into memory of which both ends know the
size. A plain socket tells a server ahead of a visit which payloads will come, and that none come
any more: between visits it waits there, asleep. A call is a head, which says which of them it is,
and then each buffer, received into memory that is used again."""

from __future__ import annotations

import abc
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tensorwire.bench.harness.control import Control
from tensorwire.bench.suites.tf_grpc.contender import Octets, Request, answer, buffers
from tensorwire.bench.suites.tf_grpc.exchange import Exchange, Exchanging
from tensorwire.bench.suites.tf_grpc.messages import Messages
from tensorwire.bench.suites.tf_grpc.payloads import MOST_BYTES, Payload

_END: Final = -1
"""As the head of a call: none come any more."""

_LEAVE_SECONDS: Final = 1.0
"""For a thread of a server, which may wait for a client that is gone."""

Word = npt.NDArray[np.int64]


class Peer(abc.ABC):
    """The rank at the other end, of one direction of calls."""

    def wrapped(self, array: Octets | Word) -> Any:
        """As the library takes it, with the same memory."""
        return array

    @abc.abstractmethod
    def send(self, arrays: Sequence[Any]) -> None:
        """Wrapped ones; returns when they may be written again."""

    @abc.abstractmethod
    def receiving(self, arrays: Sequence[Any]) -> Callable[[], object]:
        """Begins to receive into wrapped ones, in the order in which they are sent; what it returns
        waits for the end."""


def payloads_of(request: Request) -> list[Payload]:
    """Each once. Raises ValueError where they are larger than any."""
    payloads = list(dict.fromkeys(request.payloads))
    if sum(map(sum, payloads)) > MOST_BYTES or min(map(min, payloads)) < 0:
        raise ValueError(f"payloads of more than {MOST_BYTES} bytes")
    return payloads


class Attending:
    """A server's end of a visit. Raises ValueError for payloads that are larger than any."""

    def __init__(self, peer: Peer, request: Request) -> None:
        payloads = payloads_of(request)
        self._peer = peer
        self._reads, self._echoes = request.reads, request.procedure == "echo"
        self._arrays = [[np.zeros(size, np.uint8) for size in payload] for payload in payloads]
        self._places = [[peer.wrapped(each) for each in arrays] for arrays in self._arrays]
        self._word: Word = np.zeros(1, np.int64)
        self._head = [peer.wrapped(self._word)]

    def call(self) -> bool:
        """Serves the next one; False when none come any more."""
        peer, word = self._peer, self._word
        peer.receiving(self._head)()
        which = int(word[0])
        if which == _END:
            return False
        peer.receiving(self._places[which])()
        found = answer(self._arrays[which], self._reads)
        if self._echoes:
            peer.send(self._places[which])
        else:
            word[0] = found
            peer.send(self._head)
        return True


class RankClient(Exchanging):
    """control: by which the server is told of visits."""

    def __init__(self, peer: Peer, control: Control, path: str, note: str = "") -> None:
        super().__init__({"non-serialized": Messages(self._sent, lambda found: found)})
        self._peer = peer
        self._control = control
        self._path = path
        self._note = note

    def path(self) -> str:
        return self._path

    def note(self) -> str:
        return self._note

    def _sent(self, payload: Payload) -> tuple[Payload, list[Any]]:
        return payload, [self._peer.wrapped(each) for each in buffers(payload)]

    @contextmanager
    def exchange(self, request: Request) -> Iterator[Exchange]:
        peer, (head, word) = self._peer, self._word()
        which = {each: place for place, each in enumerate(dict.fromkeys(request.payloads))}
        back = {each: self._back(each) for each in which} if request.procedure == "echo" else {}
        under_way: deque[tuple[Callable[[], object], Any]] = deque()

        def send(message: tuple[Payload, list[Any]]) -> None:
            payload, arrays = message
            wrapped, reply = back[payload] if back else self._word()
            under_way.append((peer.receiving(wrapped), reply))  # ahead: nobody waits for this end
            word[0] = which[payload]
            peer.send(head)
            peer.send(arrays)

        def receive() -> Any:
            end, reply = under_way.popleft()
            end()
            return reply

        self._control.send({"request": request.to_json()})
        if "ready" not in (heard := self._control.receive()):
            raise ConnectionError(heard.get("error", "the server has hung up"))
        try:
            yield Exchange(send, receive)
        finally:
            word[0] = _END
            peer.send(head)

    def _word(self) -> tuple[list[Any], Word]:
        word: Word = np.zeros(1, np.int64)
        return [self._peer.wrapped(word)], word

    def _back(self, payload: Payload) -> tuple[list[Any], list[Octets]]:
        arrays = [np.zeros(size, np.uint8) for size in payload]
        return [self._peer.wrapped(each) for each in arrays], arrays


@contextmanager
def listening(host: str, port: int, attend: Callable[[Control], None]) -> Iterator[str]:
    """A server; yields its address. attend: called in a thread for each client, with the
    conversation, and returns when the client has hung up. port: 0 for any that is free."""
    clients: list[tuple[socket.socket, threading.Thread]] = []

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=talk, args=(Control(connection),), daemon=True)
            clients.append((connection, thread))
            thread.start()

    def talk(control: Control) -> None:
        with suppress(OSError):  # the client has hung up
            try:
                attend(control)
            except Exception as error:
                control.send({"error": f"{type(error).__name__}: {error}"})
            finally:
                control.close()

    with socket.create_server((host, port)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield f"{host}:{listener.getsockname()[1]}"
    for connection, thread in clients:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        thread.join(_LEAVE_SECONDS)


@contextmanager
def connected(address: str) -> Iterator[Control]:
    host, _, port = address.rpartition(":")
    control = Control(socket.create_connection((host, int(port))))
    try:
        yield control
    finally:
        control.close()
