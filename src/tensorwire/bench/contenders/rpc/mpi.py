# SPDX-License-Identifier: Apache-2.0
"""MPI between two ranks of one host, into memory that is used again. Both ranks spin while they
wait, so their latency is bought with two whole cores; no status, no metadata, no deadlines."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tensorwire.bench.harness.work import Work, answer, payload
from tensorwire.bench.suites.rpc.contender import Call, Client, Contender, Server, Stream

if TYPE_CHECKING:
    from mpi4py import MPI

SERVER, CLIENT = 0, 1
DATA, STOP = 1, 2


def launcher() -> str | None:
    """mpiexec of this Python's environment, else of the host."""
    own = Path(sys.executable).with_name("mpiexec")
    return str(own) if own.exists() else shutil.which("mpiexec")


def path() -> str:
    """Which all ranks take to each other."""
    from mpi4py import MPI  # starts MPI, in all ranks at once

    local = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    found = "shm" if local.Get_size() == MPI.COMM_WORLD.Get_size() else "network"
    local.Free()
    return found


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
        from mpi4py import MPI

        version = " ".join(MPI.Get_library_version().splitlines()[0].split())
        return f"{version}; both ends spin"

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


class Mpi(Contender):
    transports = ("shm",)
    packages = ("mpi4py",)
    concurrent = False

    def __init__(self) -> None:
        self.path = ""

    def viable(self, transport: str) -> str | None:
        if find_spec("mpi4py") is None:
            return "mpi4py is not installed: pip install mpi4py mpich"
        if launcher() is None:
            return "there is no mpiexec: pip install mpich"
        return None

    def launch(self, server: Sequence[str], client: Sequence[str]) -> list[list[str]]:
        program = launcher()
        assert program is not None  # viable() said so
        return [[program, "-n", "1", *server, ":", "-n", "1", *client]]

    def join(self) -> None:
        self.path = path()

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        from mpi4py import MPI

        yield _Server(MPI.COMM_WORLD)

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        from mpi4py import MPI

        yield _Client(MPI.COMM_WORLD, self.path)
