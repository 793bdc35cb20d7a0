# SPDX-License-Identifier: Apache-2.0
"""What a contender of the TF-gRPC-Bench suite has: servers, clients, and calls that carry buffers.
How to add one is told in ``docs/benchmarks.md``."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from tensorwire.bench.harness import contenders
from tensorwire.bench.harness.work import Work, checksum
from tensorwire.bench.suites.tf_grpc.payloads import Payload

GROUP: Final = "tensorwire.bench.contenders.tf_grpc"
"""Of the entry points that name classes of contenders."""
MODES: Final = ("non-serialized", "serialized")
ORIGINS: Final = ("ordinary", "published")

Octets = npt.NDArray[np.uint8]
Procedure = Literal["echo", "acknowledge"]
PROCEDURES: Final[tuple[Procedure, ...]] = get_args(Procedure)
Call = Callable[[], int]
Begin = Callable[[], Call]
"""Begins a call, and returns what waits for its end."""


@dataclass(frozen=True)
class Request:
    """What calls of one work are.

    procedure: the server sends the payload back, or 8 bytes. mode: of ``MODES``; serialized
    messages are protobuf's, others are buffers or ready bytes. origin: of the buffers of a sender
    that knows an arena. reads: whether receivers add up all bytes. payloads: of the calls, in turn.
    window: how many calls a caller has under way.
    """

    procedure: Procedure
    mode: str
    origin: str
    reads: bool
    payloads: tuple[Payload, ...]
    window: int = 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Any) -> Request:
        return msgspec.convert(found, cls)


class Client(abc.ABC):
    """A caller's connection to one server."""

    @abc.abstractmethod
    def path(self) -> str:
        """The transport that the calls take, as observed and not as asked for."""

    def note(self) -> str:
        """What a reader of the figures has to know; empty when there is nothing."""
        return ""

    @abc.abstractmethod
    def calls(self, request: Request) -> AbstractContextManager[Sequence[Call]]:
        """A call for each payload; calling it returns an ``answer``: of the echo to the caller, or
        the server's."""

    def begun(self, request: Request) -> AbstractContextManager[Sequence[Begin]]:
        """As ``calls``, for a window of calls, each of which is begun, and ends, in their order;
        of the procedures that the contender ``pipelines``."""
        raise NotImplementedError

    def serialization_ns(self) -> int:
        """Nanoseconds that this end has spent in serializers, since it began."""
        return 0


class Contender(contenders.Contender):
    """A library, and what it can do.

    joins: whether a receiver gets the buffers of a payload joined into one, where they are not
    serialized. modes, origins: as of ``Request``. pipelines: procedures of which a caller may have
    several calls under way. windows: whether its callers have them under way together, where they
    are told to; else each call begins when the one before has ended. near: whether its processes
    take whoever comes for one of theirs, so that all of them have to be here, in one network.
    """

    joins: bool = False
    modes: frozenset[str] = frozenset(MODES)
    origins: frozenset[str] = frozenset({"ordinary"})
    pipelines: frozenset[Procedure] = frozenset()
    windows: bool = True
    near: bool = False

    def supports(self, work: Work) -> bool:
        return work.payload in self.modes

    def environment(self) -> Mapping[str, str]:
        """Of its processes, before they load anything."""
        return {}

    def launch(self, commands: Sequence[Sequence[str]]) -> list[list[str]]:
        """The commands that start its processes; one that starts all of them where a launcher
        must."""
        return [list(command) for command in commands]

    def joined(self, transport: str, folder: str, number: int) -> AbstractContextManager[None]:
        """Entered first thing in each process: for libraries in which they start up together.
        folder: that only they have; number: of this one, from 0 on."""
        return nullcontext()

    @abc.abstractmethod
    def serve(
        self, transport: str, host: str, port: int, token: str | None
    ) -> AbstractContextManager[str]:
        """A server, while the context is open; yields its address, ``host:port``. port: 0 for any
        that is free. token: without which it does nothing for anybody; None on loopback."""

    @abc.abstractmethod
    def connect(
        self, transport: str, address: str, token: str | None
    ) -> AbstractContextManager[Client]: ...


def buffers(payload: Payload) -> list[Octets]:
    """In ordinary memory, every page of them touched, no two alike."""
    return [fill(np.empty(size, np.uint8), place) for place, size in enumerate(payload)]


_PATTERN: Final = np.arange(1, 252, dtype=np.uint8)


def fill(buffer: Octets, place: int) -> Octets:
    """Writes what the buffer of that place in its payload holds; returns the buffer."""
    buffer[:] = np.resize(np.roll(_PATTERN, -place), buffer.size)
    return buffer


def octets(received: Any) -> Octets:
    """A received buffer, without a copy."""
    return np.frombuffer(received, np.uint8)


_WORD: Final = 8
_MASK: Final = (1 << 62) - 1


def answer(received: Sequence[Octets], reads: bool) -> int:
    """What a receiver makes of what it was given: when it reads, a number that all bytes, and the
    places of the buffers, have a part in; else how many bytes there are."""
    if not reads:
        return sum(buffer.size for buffer in received)
    total = 0
    for place, buffer in enumerate(received, 1):
        whole = buffer.size - buffer.size % _WORD
        words = buffer[:whole].view(np.float32)
        total += place * (checksum(words) + int.from_bytes(buffer[whole:].tobytes(), "little"))
    return total & _MASK


def expected(contender: Contender, request: Request) -> list[int]:
    """The answer to the call of each payload."""
    found: dict[Payload, int] = {}
    for payload in set(request.payloads):
        sent = buffers(payload)
        if contender.joins and request.mode == "non-serialized":
            sent = [np.concatenate(sent)]
        found[payload] = answer(sent, request.reads)
    return [found[payload] for payload in request.payloads]


def names() -> list[str]:
    """Of the contenders that are installed."""
    return contenders.names(GROUP)


def find(name: str) -> Contender:
    """Raises ValueError for a name that no installed package has."""
    return contenders.find(GROUP, Contender, name)  # type: ignore[type-abstract]
