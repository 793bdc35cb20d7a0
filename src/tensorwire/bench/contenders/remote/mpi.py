# SPDX-License-Identifier: Apache-2.0
"""MPI's one-sided operations on a window, under a lock that is held throughout, each with a flush.
MPI maps the windows of one host. An owner that waits for a flag polls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensorwire.bench.contenders.rpc.mpi import OverMpi, version
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.remote.contender import (
    PATIENCE_SECONDS,
    Client,
    Contender,
    Measured,
    Owner,
    counting,
    extent,
    parts,
    reading,
    source,
)

if TYPE_CHECKING:
    from mpi4py import MPI

OWNER, CLIENT = 0, 1
_STOP = 1 << 62
_DATA, _FLAG = 0, 1
"""Words of the window, where flags are measured."""


class _Window:
    """Of both ranks, for one visit."""

    def __init__(self, comm: MPI.Comm, nbytes: int) -> None:
        from mpi4py import MPI

        self.window = MPI.Win.Allocate(nbytes, 1, comm=comm)
        buffer: Any = self.window.tomemory()
        self.memory: npt.NDArray[np.uint8] = np.frombuffer(buffer, np.uint8)
        self.memory[:] = 0
        self.words = self.memory[: 2 * 8].view(np.int64)

    def begin(self, comm: MPI.Comm) -> None:
        """Both have filled their memory."""
        comm.Barrier()
        self.window.Lock_all()

    def end(self) -> None:
        self.window.Unlock_all()
        self.window.Free()

    def raise_flag(self, rank: int, value: int) -> None:
        """After a write of 8 bytes."""
        from mpi4py import MPI

        word = np.array([value], np.int64)
        self.window.Put(word, rank, 8 * _DATA)
        self.window.Flush(rank)
        self.window.Accumulate(word, rank, 8 * _FLAG, MPI.REPLACE)
        self.window.Flush(rank)

    def await_flag(self, at_least: int) -> int:
        ends = time.monotonic() + PATIENCE_SECONDS
        while (value := int(self.words[_FLAG])) < at_least:
            self.window.Sync()
            if time.monotonic() > ends:
                raise TimeoutError("no flag was raised")
        return value


class _Owner(Owner):
    address = "rank 0"

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.work = Work("read", 8)

    def prepare(self, work: Work) -> None:
        self.work = work

    def attend(self) -> None:
        work = self.work
        values = source(work).view(np.uint8)
        window = _Window(self.comm, max(values.nbytes, 16))
        window.memory[: values.nbytes] = values
        window.begin(self.comm)
        if work.case == "signal":
            turn = 1
            while window.await_flag(turn) < _STOP:
                window.raise_flag(CLIENT, turn)
                turn += 1
        self.comm.Barrier()
        window.end()


class _Client(Client):
    def __init__(self, comm: MPI.Comm, path: str) -> None:
        self.comm = comm
        self.taken = path

    def path(self) -> str:
        return self.taken

    def note(self) -> str:
        return version()

    @contextmanager
    def access(self, work: Work) -> Iterator[Measured]:
        window = _Window(self.comm, max(extent(work), 16))
        window.begin(self.comm)
        try:
            if work.case in ("read", "batch"):
                out = np.zeros(work.size // 4, np.float32)
                yield reading(work, out, lambda: self._read(window, work, out.view(np.uint8)))
            elif work.case == "fetch_add":
                yield counting(_counts(window))
            else:
                yield counting(_signals(window))
                window.raise_flag(OWNER, _STOP)
        finally:
            self.comm.Barrier()
            window.end()

    def _read(self, window: _Window, work: Work, out: npt.NDArray[np.uint8]) -> None:
        if work.case == "read":
            window.window.Get(out, OWNER, 0)
        else:
            for there, here in zip(*parts(work), strict=True):
                window.window.Get(out[here], OWNER, there.start)
        window.window.Flush(OWNER)


def _counts(window: _Window) -> Any:
    from mpi4py import MPI

    one, before = np.ones(1, np.int64), np.zeros(1, np.int64)

    def call() -> int:
        window.window.Fetch_and_op(one, before, OWNER, 0, MPI.SUM)
        window.window.Flush(OWNER)
        return int(before[0])

    return call


def _signals(window: _Window) -> Any:
    turn = 0

    def call() -> int:
        nonlocal turn
        turn += 1
        window.raise_flag(OWNER, turn)
        return window.await_flag(turn)

    return call


class Mpi(OverMpi, Contender):
    def launch(self, owner: Sequence[str], client: Sequence[str]) -> list[list[str]]:
        return self.commands([owner, client])

    @contextmanager
    def own(self, transport: str) -> Iterator[Owner]:
        from mpi4py import MPI

        yield _Owner(MPI.COMM_WORLD)

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        from mpi4py import MPI

        yield _Client(MPI.COMM_WORLD, self.path)
