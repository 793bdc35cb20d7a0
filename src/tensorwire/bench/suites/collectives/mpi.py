# SPDX-License-Identifier: Apache-2.0
"""Ranks of MPI, through mpi4py, and the search for the launcher and the library of one MPI among
those that are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tensorwire.bench.suites.collectives.contender import (
    Call,
    Contender,
    Meeting,
    Messages,
    Rank,
    exchange,
)
from tensorwire.bench.suites.collectives.operations import (
    OPERATIONS,
    ROOT,
    Array,
    exchanged,
    portions,
)

if TYPE_CHECKING:
    from mpi4py import MPI

LOOK_SECONDS: Final = 20.0
"""For a program to say which version it is."""
TYPES: Final = frozenset({"float32", "float64", "int8", "int32", "int64", "uint8"})


@dataclass(frozen=True)
class Kind:
    """One MPI. package: of PyPI. launchers: names of its programs; says: one of these in their
    ``--version``. library: its file; called: in the library's own version."""

    package: str
    launchers: Sequence[str]
    says: Sequence[str]
    library: str
    called: str


@dataclass(frozen=True)
class Found:
    """launcher: the program; environment: in which it, and the ranks, run."""

    launcher: str
    environment: Mapping[str, str]


class _Rank(Rank):
    def __init__(self, meeting: Meeting) -> None:
        from mpi4py import MPI  # starts MPI, in all ranks at once

        self._mpi = MPI
        self._comm: MPI.Comm = MPI.COMM_WORLD
        here = self._comm.Get_rank(), self._comm.Get_size()
        if here != (meeting.rank, meeting.size):
            raise RuntimeError(
                f"mpiexec made rank {meeting.rank} of {meeting.size} rank {here[0]} of {here[1]}: "
                "it is not the launcher of this MPI"
            )
        local = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.path = "shm" if local.Get_size() == meeting.size else "network"
        local.Free()
        version = MPI.Get_library_version().partition("\n")[0].partition(",")[0]
        self.note = " ".join(version.replace("Version:", "").split()) + "; ranks spin"

    def barrier(self) -> None:
        self._comm.Barrier()

    def call(self, case: str, given: Array, taken: Array) -> Call:
        comm, here = self._comm, self._mpi.IN_PLACE
        if OPERATIONS[case].paired:
            by = Messages(
                comm.Send,
                comm.Recv,
                lambda array, peer: comm.Isend(array, peer).Wait,
                lambda array, peer: comm.Irecv(array, peer).Wait,
            )
            return exchange(by, case, comm.Get_rank(), given, taken)
        rank, ranks = comm.Get_rank(), comm.Get_size()
        root = rank == ROOT
        if OPERATIONS[case].uneven:
            return self._uneven(case, given, taken, rank, ranks)
        calls: dict[str, Call] = {
            "barrier": comm.Barrier,
            "all_reduce": lambda: comm.Allreduce(here, given),
            "reduce": lambda: comm.Reduce(here if root else given, given if root else None),
            "broadcast": lambda: comm.Bcast(given, ROOT),
            "all_gather": lambda: comm.Allgather(given, taken),
            "gather": lambda: comm.Gather(given, taken if root else None, ROOT),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(given, taken),
            "scatter": lambda: comm.Scatter(given if root else None, taken, ROOT),
            "all_to_all": lambda: comm.Alltoall(given, taken),
        }
        return calls[case]

    def _uneven(self, case: str, given: Array, taken: Array, rank: int, ranks: int) -> Call:
        comm, count = self._comm, max(given.size, taken.size)
        shares = portions(count, ranks)
        if case == "all_gather_v":
            return lambda: comm.Allgatherv(given, [taken, shares])
        if case == "reduce_scatter_v":
            return lambda: comm.Reduce_scatter(given, taken, shares)
        each = exchanged(count, rank, ranks)
        return lambda: comm.Alltoallv([given, each], [taken, each])


class MpiContender(Contender):
    """What those of both MPIs have in common."""

    kind: Kind
    transports = ("shm",)
    packages = ("mpi4py",)
    dtypes = TYPES
    lacks: Mapping[str, str] = {
        name: "no operation of MPI takes many arrays"
        for name, each in OPERATIONS.items()
        if each.coalesced
    }

    def viable(self, transport: str) -> str | None:
        found = search(self.kind)
        return found if isinstance(found, str) else None

    def settings(self, ranks: int) -> Mapping[str, str]:
        """Of the launcher, in its environment."""
        return {}

    def launch(self, ranks: Sequence[Sequence[str]]) -> list[list[str]]:
        found = search(self.kind)
        assert isinstance(found, Found)  # viable() said so
        variables = {**found.environment, **self.settings(len(ranks))}
        command = ["env", *(f"{name}={value}" for name, value in variables.items()), found.launcher]
        for place, rank in enumerate(ranks):
            command += [*([":"] if place else []), "-n", "1", *rank]
        return [command]

    @contextmanager
    def join(self, meeting: Meeting) -> Iterator[Rank]:
        yield _Rank(meeting)


def launcher(kind: Kind) -> Path | None:
    """Its program, where this Python's programs are or in PATH."""
    folders = [str(Path(sys.executable).parent), *os.get_exec_path()]
    programs = (Path(folder, name) for folder in folders for name in kind.launchers)
    for program in dict.fromkeys(programs):
        if os.access(program, os.X_OK) and _says(program, kind.says):
            return program
    return None


@cache
def search(kind: Kind) -> Found | str:
    """Or why it cannot be had."""
    install = f"pip install {kind.package}"
    if find_spec("mpi4py") is None:
        return f"mpi4py is not installed: pip install mpi4py {kind.package}"
    program = launcher(kind)
    if program is None:
        return (
            f"there is no mpiexec of {kind.called} beside this Python or in PATH: {install}, in an "
            "environment of its own where another MPI is installed already"
        )
    library = program.parent.parent / "lib" / kind.library
    # A name alone is looked up where the system has its libraries.
    environment = {"MPI4PY_LIBMPI": str(library) if library.exists() else kind.library}
    told = _output([sys.executable, "-c", _VERSION], environment)
    if kind.called not in told:
        last = (told.strip().splitlines() or ["nothing"])[-1]
        return f"mpi4py does not load {kind.called}, whose mpiexec is {program}, but says: {last}"
    return Found(str(program), environment)


def _says(program: Path, words: Sequence[str]) -> bool:
    told = _output([str(program), "--version"], {})
    return any(each in told for each in words)


_VERSION: Final = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""


def _output(command: Sequence[str], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            text=True,
            errors="replace",
            timeout=LOOK_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout
