# SPDX-License-Identifier: Apache-2.0
"""What a contender of ``tensorwire bench rpc`` has: a server, a client, and calls to time. How to
add one is told in ``docs/benchmarks.md``."""

from __future__ import annotations

import abc
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from tensorwire.bench.harness import contenders
from tensorwire.bench.harness.fresh import FIRST
from tensorwire.bench.harness.work import Work

GROUP = "tensorwire.bench.contenders.rpc"
"""Of the entry points that name classes of contenders."""

Call = Callable[[], int]
Stream = Callable[[int], int]

ANSWER = struct.Struct("<q")
"""How a receiver's answer travels: 8 bytes, the smallest message that is measured."""


class Server(abc.ABC):
    """The serving end, in a process of its own."""

    address: str

    @abc.abstractmethod
    def prepare(self, work: Work) -> None:
        """Makes ready for ``work`` and forgets what was prepared before."""

    def attend(self) -> None:
        """Serves one client until that closes its call: for libraries without threads of their
        own. Runs after ``prepare``, in the thread that the library was set up in."""
        return

    def pids(self) -> list[int]:
        """Of the processes whose CPU time is this end's."""
        return [os.getpid()]


class Client(abc.ABC):
    """The calling end, in a process of its own, connected to one server."""

    @abc.abstractmethod
    def path(self) -> str:
        """The transport that the calls take, as observed and not as asked for."""

    def note(self) -> str:
        """What a reader of the figure has to know; empty when there is nothing."""
        return ""

    @abc.abstractmethod
    def call(self, work: Work) -> AbstractContextManager[Call]:
        """One ``request`` or ``pull`` for one caller; calling it returns the receiver's answer."""

    def stream(self, work: Work) -> AbstractContextManager[Stream]:
        """Sends that many messages on one stream; returns how many the receiver counted."""
        raise ValueError("this contender has no streams of messages")


class Contender(contenders.Contender):
    """A library, and what it can do.

    cases: ``request`` (the request carries the payload, the reply is 8 bytes), ``pull`` (the other
        way round) and ``stream`` (many payloads one way on one stream, then one count back). The
        case ``FIRST`` is a ``request`` to it.
    origins, payloads: as of ``Work``.
    """

    cases: frozenset[str] = frozenset({"request", "pull", "stream"})
    origins: frozenset[str] = frozenset({"ordinary"})
    payloads: frozenset[str] = frozenset({"array"})
    concurrent: bool = True
    """Whether several threads may call at the same time."""

    def supports(self, work: Work) -> bool:
        return (
            ("request" if work.case == FIRST else work.case) in self.cases
            and work.payload in self.payloads
            and (self.concurrent or work.callers == 1)
        )

    def join(self) -> None:
        """Called first thing in both processes: for libraries in which they start up together."""
        return

    @abc.abstractmethod
    def serve(self, transport: str) -> AbstractContextManager[Server]: ...

    @abc.abstractmethod
    def connect(self, transport: str, address: str) -> AbstractContextManager[Client]: ...

    def launch(self, server: Sequence[str], client: Sequence[str]) -> list[list[str]]:
        """The commands that start both agents; one that starts both where a launcher must."""
        return [list(server), list(client)]


@contextmanager
def ready(call: Callable[..., int]) -> Iterator[Callable[..., int]]:
    """A call that holds nothing which must be closed."""
    yield call


def names() -> list[str]:
    """Of the contenders that are installed."""
    return contenders.names(GROUP)


def find(name: str) -> Contender:
    """Raises ValueError for a name that no installed package has."""
    return contenders.find(GROUP, Contender, name)  # type: ignore[type-abstract]
