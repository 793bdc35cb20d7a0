# SPDX-License-Identifier: Apache-2.0
"""What a contender of ``tensorwire bench collectives`` has: ranks that join each other, and calls
to time. How to add one is told in ``docs/benchmarks.md``."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tensorwire.bench.harness import contenders
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.operations import (
    NUMPY_TYPES,
    OPERATIONS,
    PAIR,
    Array,
    messages,
)

GROUP = "tensorwire.bench.contenders.collectives"
"""Of the entry points that name classes of contenders."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Meeting:
    """How the ranks of a group find each other.

    folder: one that is fresh, this user's alone, and that all ranks reach. timeout: of joining, and
    of each operation, in seconds. device: one of ``operations.DEVICES``, in whose memory the data
    lies.
    """

    rank: int
    size: int
    folder: str
    timeout: float
    device: str = "cpu"


class Rank(abc.ABC):
    """One rank, joined to the others.

    path: the transport that data takes, as observed where the library tells it. note: what a reader
    of the figures has to know. exchanges: whether ranks get what others give; a limit line's do
    not, and are not checked.
    """

    path: str
    note: str = ""
    exchanges: bool = True

    @abc.abstractmethod
    def barrier(self) -> None: ...

    @abc.abstractmethod
    def call(self, case: str, given: Array, taken: Array) -> Call:
        """What is timed: one call of the operation, whose root is rank 0 and whose reduction is a
        sum. The arrays are those that ``operations.arrays`` makes; on a device it is of copies that
        are made here. Where messages go between two ranks, what ``exchange`` makes. Uneven shares
        are those of ``operations.portions`` and ``exchanged``, and the arrays of a coalesced
        operation those of ``operations.parts``."""

    def fetch(self) -> None:
        """Copies what the last call has left elsewhere, as on a device, to the arrays of
        ``call``."""
        return

    def ways(self, case: str) -> Mapping[str, int]:
        """How often calls of the operation have gone which way, where the library tells it."""
        return {}


@dataclass(frozen=True)
class Messages:
    """How a library sends an array to a rank, or receives one from it: until it is done, or begun,
    which gives what waits for its end."""

    send: Callable[[Any, int], object]
    receive: Callable[[Any, int], object]
    begin_send: Callable[[Any, int], Call]
    begin_receive: Callable[[Any, int], Call]


def exchange(by: Messages, case: str, rank: int, given: Any, taken: Any) -> Call:
    """Of a ping-pong a message each way; of a stream as many as ``operations.messages`` tells from
    the first rank of the pair to the other, all begun before one is waited for, and one back. Other
    ranks do nothing. given, taken: the arrays, as the library has them."""
    if rank not in PAIR:
        return lambda: None
    first, peer = rank == PAIR[0], PAIR[1 - rank]
    count = messages(case, max(given.nbytes, taken.nbytes))

    def begin() -> None:
        by.send(given, peer)
        by.receive(taken, peer)

    def answer() -> None:
        by.receive(taken, peer)
        by.send(given, peer)

    def stream() -> None:
        for wait in [by.begin_send(given, peer) for _ in range(count)]:
            wait()
        by.receive(taken, peer)

    def drain() -> None:
        for wait in [by.begin_receive(taken, peer) for _ in range(count)]:
            wait()
        by.send(given, peer)

    if case == "stream":
        return stream if first else drain
    return begin if first else answer


class Contender(contenders.Contender):
    """A library. devices, cases, dtypes: those of ``operations`` that it has. lacks: operations
    that it does not have, whatever ``cases`` says, each with the reason."""

    devices: frozenset[str] = frozenset({"cpu"})
    cases: frozenset[str] = frozenset(OPERATIONS)
    dtypes: frozenset[str] = frozenset(NUMPY_TYPES)
    lacks: Mapping[str, str] = {}

    def lacks_on(self, device: str) -> Mapping[str, str]:
        """As ``lacks``, with data on that device."""
        return self.lacks

    def cases_on(self, device: str) -> frozenset[str]:
        """Of ``cases``, those with data on that device."""
        return self.cases - self.lacks_on(device).keys() if device in self.devices else frozenset()

    def supports(self, work: Work, dtype: str, device: str = "cpu") -> bool:
        cases = self.cases_on(device)
        return work.case in cases and (work.case == "barrier" or dtype in self.dtypes)

    @abc.abstractmethod
    def join(self, meeting: Meeting) -> AbstractContextManager[Rank]:
        """In the process of that rank; ends by leaving."""

    def launch(self, ranks: Sequence[Sequence[str]]) -> list[list[str]]:
        """The commands that start these; one that starts all of them where a launcher must."""
        return [list(rank) for rank in ranks]


def names() -> list[str]:
    """Of the contenders that are installed."""
    return contenders.names(GROUP)


def find(name: str) -> Contender:
    """Raises ValueError for a name that no installed package has."""
    return contenders.find(GROUP, Contender, name)  # type: ignore[type-abstract]
