# SPDX-License-Identifier: Apache-2.0
"""What a contender of ``tensorwire bench remote`` has: an owner of memory, and a client that
accesses it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

import numpy as np

from tensorwire.bench.harness import contenders
from tensorwire.bench.harness.measure import WrongAnswerError
from tensorwire.bench.harness.work import Array, Work, checksum, payload

GROUP: Final = "tensorwire.bench.contenders.remote"
"""Of the entry points that name classes of contenders."""

USUAL: Final = ("read", "batch", "fetch_add", "signal")
READS: Final = frozenset({"read", "read_published", "read_staged"})
"""Cases of any size."""
JAX: Final = frozenset({"jax", "jax_published"})
CASES: Final = ("read", "read_published", "read_staged", *USUAL[1:], "prepare", *sorted(JAX))
BATCH: Final = 512
PARTS: Final = {"batch": BATCH, "prepare": 100_000}
"""How many reads there are together: side by side here, and with as large gaps there."""
PATIENCE_SECONDS: Final = 30.0


class Measured(NamedTuple):
    """call: what is timed. check: makes one call, and raises WrongAnswerError if it did not do what
    it should."""

    call: Callable[[], object]
    check: Callable[[], None]


class Owner(abc.ABC):
    """Whose memory it is, in a process of its own."""

    address: str

    @abc.abstractmethod
    def prepare(self, work: Work) -> None:
        """Has memory ready for ``work``, filled as ``source`` says, and forgets what was prepared
        before."""

    def attend(self) -> None:
        """Takes its part until the client has ended its visit, where the library needs one."""
        return


class Client(abc.ABC):
    """Who accesses it, in a process of its own."""

    @abc.abstractmethod
    def path(self) -> str:
        """The transport that is taken, as observed and not as asked for."""

    def note(self) -> str:
        """What a reader of the figure has to know; empty when there is nothing."""
        return ""

    @abc.abstractmethod
    def access(self, work: Work) -> AbstractContextManager[Measured]: ...


class Contender(contenders.Contender):
    """A library, and what it can do.

    cases: ``read`` (all bytes, of memory that is made to be accessed, into memory that is used
    again), ``read_published`` (the same, of memory that arrays come from and messages lend),
    ``read_staged`` (as ``read``, into other memory, from where it is copied),
    ``batch`` (``BATCH`` reads of a part each that were prepared, and are started and waited for
    together), ``prepare`` (such reads are described, as many as ``PARTS`` says, and not
    started), ``fetch_add`` (of 8 bytes), ``signal`` (a write that is followed by a flag, and the
    same back), ``jax`` (an array of JAX at the owner becomes one here, which is added up) and
    ``jax_published`` (the same, where the owner has placed it as the library likes it best).
    """

    cases: frozenset[str] = frozenset(USUAL)

    def join(self) -> None:
        """Called first thing in both processes: for libraries in which they start up together."""
        return

    @abc.abstractmethod
    def own(self, transport: str) -> AbstractContextManager[Owner]: ...

    @abc.abstractmethod
    def connect(self, transport: str, address: str) -> AbstractContextManager[Client]: ...

    def launch(self, owner: Sequence[str], client: Sequence[str]) -> list[list[str]]:
        """The commands that start both agents; one that starts both where a launcher must."""
        return [list(owner), list(client)]


def extent(work: Work) -> int:
    """Bytes that the owner needs for ``work``."""
    return 2 * work.size if work.case in PARTS else max(work.size, 8)


def source(work: Work) -> Array:
    """What the owner's memory holds; of parts, in each other one. Atomics begin at zero."""
    found = payload(extent(work))
    if work.case not in (*PARTS, *READS, *JAX):
        found[:] = 0
    return found


def parts(work: Work) -> tuple[list[slice], list[slice]]:
    """Of parts: bytes at the owner, and here."""
    count = PARTS[work.case]
    length = work.size // count
    there = [slice(2 * n * length, (2 * n + 1) * length) for n in range(count)]
    here = [slice(n * length, (n + 1) * length) for n in range(count)]
    return there, here


def reading(work: Work, out: Array, call: Callable[[], object]) -> Measured:
    """A call that fills ``out``."""
    expected = source(work)
    if work.case in PARTS:
        expected = np.ascontiguousarray(expected.reshape(PARTS[work.case], 2, -1)[:, 0])
    total = checksum(expected.reshape(-1))

    def check() -> None:
        out[:] = 0
        call()
        if checksum(out) != total:
            raise WrongAnswerError("what was read is not what the owner has")

    return Measured(call, check)


def preparing(
    work: Work, out: Array, prepare: Callable[[], tuple[Callable[[], object], Callable[[], object]]]
) -> Measured:
    """A call that describes all parts, which are to end in ``out``. prepare: gives what starts
    their reads and waits for them, and what gives them up; that is timed, too."""

    def call() -> None:
        _, release = prepare()
        release()

    def read() -> None:
        run, release = prepare()
        run()
        release()

    return Measured(call, reading(work, out, read).check)


def making(work: Work, call: Callable[[], Any]) -> Measured:
    """A call that gives an array with all that the owner has. It is added up: what is only lent has
    to be read, too."""
    total = checksum(source(work))

    def read() -> int:
        return checksum(np.asarray(call()))

    def check() -> None:
        if read() != total:
            raise WrongAnswerError("what came is not what the owner has")

    return Measured(read, check)


def counting(call: Callable[[], int]) -> Measured:
    """A call that gives a number, each time by one larger."""

    def check() -> None:
        first = call()
        second = call()
        if second != first + 1:
            raise WrongAnswerError(f"after {first} came {second}")

    return Measured(call, check)


def names() -> list[str]:
    """Of the contenders that are installed."""
    return contenders.names(GROUP)


def find(name: str) -> Contender:
    """Raises ValueError for a name that no installed package has."""
    return contenders.find(GROUP, Contender, name)  # type: ignore[type-abstract]
