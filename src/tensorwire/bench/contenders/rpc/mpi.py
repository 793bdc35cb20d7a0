# SPDX-License-Identifier: Apache-2.0
"""MPI between two ranks of one host, into memory that is used again. Both ranks spin while they
wait, so their latency is bought with two whole cores; no status, no metadata, no deadlines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np

from tensorwire.bench.contenders.collectives.mpich import Mpich
from tensorwire.bench.contenders.collectives.openmpi import OpenMpi
from tensorwire.bench.harness import contenders
from tensorwire.bench.harness.work import Work, answer, payload
from tensorwire.bench.suites.collectives.mpi import MpiContender
from tensorwire.bench.suites.rpc.contender import Call, Client, Contender, Server, Stream

if TYPE_CHECKING:
    from mpi4py import MPI

SERVER, CLIENT = 0, 1
DATA, STOP = 1, 2
LIBRARIES: Final[Sequence[MpiContender]] = (Mpich(), OpenMpi())
"""The first of these that is here is taken, with its own launcher."""


def version() -> str:
    from mpi4py import MPI

    return " ".join(MPI.Get_library_version().splitlines()[0].split())


class OverMpi(contenders.Contender):
    """What contenders over MPI have in common, whose processes are its ranks."""

    transports = ("shm",)
    packages = ("mpi4py",)

    def __init__(self) -> None:
        self.path = ""
        """Which all ranks take to each other."""

    def viable(self, transport: str) -> str | None:
        missing = all(each.viable(transport) for each in LIBRARIES)
        return LIBRARIES[0].viable(transport) if missing else None

    def commands(self, ranks: Sequence[Sequence[str]]) -> list[list[str]]:
        """The command that starts these."""
        return next(each for each in LIBRARIES if each.viable("shm") is None).launch(ranks)

    def join(self) -> None:
        from mpi4py import MPI  # starts MPI, in all ranks at once

        local = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
        self.path = "shm" if local.Get_size() == MPI.COMM_WORLD.Get_size() else "network"
        local.Free()


class _Server(Server):
    address = "rank 0"

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.work = Work("request", 0)

    def prepare(self, work: Work) -> None:
        self.work = work

    def attend(self) -> None:
        work, comm = self.work, self.comm
        if work.case == "request":
            array = np.zeros(work.size // 4, np.float32)
            while self.received(array):
                comm.Send(np.array([answer(array, work.reads)]), CLIENT)
        elif work.case == "pull":
            reply, request = payload(work.size), np.zeros(1, np.int64)
            while self.received(request):
                comm.Send(reply, CLIENT)
        else:
            array, count = np.zeros(work.size // 4, np.float32), np.zeros(1, np.int64)
            while self.received(count):
                for _ in range(int(count[0])):
                    comm.Recv(array, CLIENT)
                comm.Send(count, CLIENT)

    def received(self, target: np.ndarray[tuple[int], np.dtype[np.generic]]) -> bool:
        """Fills ``target``; False when the client has told the server to stop."""
        from mpi4py import MPI

        status = MPI.Status()
        self.comm.Recv(target, CLIENT, MPI.ANY_TAG, status)
        return bool(status.Get_tag() == DATA)


class _Client(Client):
    def __init__(self, comm: MPI.Comm, path: str) -> None:
        self.comm = comm
        self.taken = path

    def path(self) -> str:
        return self.taken

    def note(self) -> str:
        return f"{version()}; both ends spin"

    @contextmanager
    def attended(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.comm.Send(np.zeros(0, np.float32), SERVER, STOP)

    @contextmanager
    def call(self, work: Work) -> Iterator[Call]:
        comm, result, reads = self.comm, np.zeros(1, np.int64), work.reads
        array = payload(work.size)

        def push() -> int:
            comm.Send(array, SERVER, DATA)
            comm.Recv(result, SERVER)
            return int(result[0])

        def pull() -> int:
            comm.Send(result, SERVER, DATA)
            comm.Recv(array, SERVER)
            return answer(array, reads)

        if work.case == "pull":
            array[:] = 0
        with self.attended():
            yield pull if work.case == "pull" else push

    @contextmanager
    def stream(self, work: Work) -> Iterator[Stream]:
        comm, array, result = self.comm, payload(work.size), np.zeros(1, np.int64)

        def stream(count: int) -> int:
            comm.Send(np.array([count]), SERVER, DATA)
            for _ in range(count):
                comm.Send(array, SERVER, DATA)
            comm.Recv(result, SERVER)
            return int(result[0])

        with self.attended():
            yield stream


class Mpi(OverMpi, Contender):
    concurrent = False

    def launch(self, server: Sequence[str], client: Sequence[str]) -> list[list[str]]:
        return self.commands([server, client])

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        from mpi4py import MPI

        yield _Server(MPI.COMM_WORLD)

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        from mpi4py import MPI

        yield _Client(MPI.COMM_WORLD, self.path)
