# SPDX-License-Identifier: Apache-2.0
"""Libraries that read from memory which the other end has registered. A call is a word that says
which payload is ready; the other end reads all of its buffers, into memory that is used again, and
tells its answer by a word. Of an echo the caller then reads them back from there. A plain socket
tells both ends of each other ahead of a visit: between visits a server waits there, asleep."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, pairwise
from typing import Any, Final

import numpy as np

from tensorwire.bench.harness.control import Control
from tensorwire.bench.suites.rpc.contender import ANSWER
from tensorwire.bench.suites.tf_grpc.contender import Octets, Request, answer, buffers
from tensorwire.bench.suites.tf_grpc.exchange import Exchange, Exchanging
from tensorwire.bench.suites.tf_grpc.messages import Messages
from tensorwire.bench.suites.tf_grpc.payloads import Payload
from tensorwire.bench.suites.tf_grpc.ranks import payloads_of

_END: Final = -1
"""As the word of a call: none come any more."""


class Memory(abc.ABC):
    """Arrays of one end of a visit, which the other one may read. A word has 8 bytes."""

    @abc.abstractmethod
    def about(self) -> dict[str, Any]:
        """What the other end has to know, for JSON."""

    @abc.abstractmethod
    def meet(self, about: Mapping[str, Any]) -> None:
        """about: of the other end."""

    @abc.abstractmethod
    def reading(self, own: slice, others: slice) -> Callable[[], object]:
        """What reads these arrays of the other end into these of this one, which are as large, and
        returns when all is there."""

    @abc.abstractmethod
    def tell(self, word: bytes) -> None: ...

    @abc.abstractmethod
    def heard(self) -> bytes:
        """The next word: waits for it."""

    @abc.abstractmethod
    def release(self) -> None:
        """Nobody reads here any more."""


Make = Callable[[Sequence[Octets], Control], Memory]
"""Of the arrays, and of the conversation with the other end."""


def attend(control: Control, make: Make) -> None:
    """A client's visits, until it hangs up. Raises ValueError for payloads that are larger than
    any."""
    while message := control.receive():
        request = Request.from_json(message["request"])
        payloads = payloads_of(request)
        arrays = [[np.zeros(size, np.uint8) for size in payload] for payload in payloads]
        memory = make([*chain(*arrays)], control)
        control.send({"about": memory.about()})
        memory.meet(message["about"])
        reads = [memory.reading(each, each) for each in _slices(payloads)]
        while (which := _number(memory.heard())) != _END:
            reads[which]()
            memory.tell(ANSWER.pack(answer(arrays[which], request.reads)))
        memory.release()


class ReadingClient(Exchanging):
    """control: by which the server is told of visits."""

    def __init__(self, make: Make, control: Control, path: str, note: str) -> None:
        super().__init__({"non-serialized": Messages(lambda payload: payload, lambda found: found)})
        self._make = make
        self._control = control
        self._path = path
        self._note = note

    def path(self) -> str:
        return self._path

    def note(self) -> str:
        return self._note

    @contextmanager
    def exchange(self, request: Request) -> Iterator[Exchange]:
        payloads = payloads_of(request)
        which = {payload: place for place, payload in enumerate(payloads)}
        sent = [buffers(payload) for payload in payloads]
        echoes = request.procedure == "echo"
        back = [[np.zeros(size, np.uint8) for size in each] for each in payloads if echoes]
        memory = self._make([*chain(*sent, *back)], self._control)
        self._control.send({"request": request.to_json(), "about": memory.about()})
        if "about" not in (heard := self._control.receive()):
            raise ConnectionError(heard.get("error", "the server has hung up"))
        memory.meet(heard["about"])
        first = sum(map(len, sent))
        reads = [
            memory.reading(slice(first + each.start, first + each.stop), each)
            for each in _slices(payloads)
            if echoes
        ]
        under_way: deque[int] = deque()

        def send(payload: Payload) -> None:
            under_way.append(which[payload])
            memory.tell(ANSWER.pack(which[payload]))

        def receive() -> Any:
            word, place = memory.heard(), under_way.popleft()
            if not echoes:
                return word
            reads[place]()
            return back[place]

        try:
            yield Exchange(send, receive)
        finally:
            memory.tell(ANSWER.pack(_END))
            memory.release()


def _number(word: bytes) -> int:
    return int(ANSWER.unpack(word)[0])


def _slices(payloads: Sequence[Payload]) -> list[slice]:
    """Where the buffers of each are, one after the other."""
    ends = accumulate((len(payload) for payload in payloads), initial=0)
    return [slice(*each) for each in pairwise(ends)]
