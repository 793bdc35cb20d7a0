# SPDX-License-Identifier: Apache-2.0
"""Which MPI is found, and what is said of one that is not; no MPI is needed for that."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tensorwire.bench.contenders.collectives.mpich import Mpich
from tensorwire.bench.contenders.collectives.openmpi import OpenMpi
from tensorwire.bench.contenders.remote import mpi as remote
from tensorwire.bench.contenders.rpc import mpi as rpc
from tensorwire.bench.contenders.tf_grpc import mpi as tf_grpc
from tensorwire.bench.harness.contenders import Contender
from tensorwire.bench.suites.collectives import mpi
from tensorwire.bench.suites.collectives.mpi import Found, search

OTHERS = (rpc, remote, tf_grpc)
MPI4PY = """
import os
class MPI:
    @staticmethod
    def Get_library_version():
        return os.environ.get("MPI4PY_LIBMPI", "no library")
class rc: pass
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An mpi4py that says which library it was told to load, and no MPI beside this Python."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text(MPI4PY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'a' / 'bin'}:{tmp_path / 'b' / 'bin'}")
    monkeypatch.setattr(mpi, "find_spec", lambda name: object())
    kinds = {kind.launchers: kind for kind in (Mpich.kind, OpenMpi.kind)}
    assert len(kinds) == 2
    search.cache_clear()
    yield tmp_path
    search.cache_clear()


def put(prefix: Path, name: str, says: str, library: str | None = None) -> Path:
    """An installation whose program says that."""
    program = prefix / "bin" / name
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    if library is not None:
        (prefix / "lib").mkdir()
        (prefix / "lib" / library).touch()
    return program


def test_each_mpi_has_its_own_launcher_and_library(installed: Path) -> None:
    one = put(installed / "MPICH" / "a", "mpiexec", "HYDRA build details:", "libmpi.so.12")
    two = put(installed / "Open MPI" / "b", "mpiexec", "mpiexec (Open MPI) 5", "libmpi.so.40")
    os.environ["PATH"] = f"{two.parent}:{one.parent}"  # which the fixture restores
    for kind, program, library in (
        (Mpich.kind, one, "libmpi.so.12"),
        (OpenMpi.kind, two, "libmpi.so.40"),
    ):
        path = str(program.parent.parent / "lib" / library)
        assert search(kind) == Found(str(program), {"MPI4PY_LIBMPI": path})


def test_a_library_of_the_system_is_found_by_its_name(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Debian has Open MPI."""
    program = put(installed / "a", "mpiexec.openmpi", "mpiexec.openmpi (OpenRTE) 4.1.4")
    monkeypatch.setattr(mpi, "_VERSION", "import os; print('Open MPI', os.environ)")
    assert search(OpenMpi.kind) == Found(str(program), {"MPI4PY_LIBMPI": "libmpi.so.40"})


def test_one_launcher_starts_all_ranks(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = put(installed / "Open MPI", "mpiexec", "mpiexec (Open MPI) 5", "libmpi.so.40")
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    (few,) = OpenMpi().launch([["agent", "0"], ["agent", "1"]])
    start = few.index(str(program))
    assert few[0] == "env"
    assert few[start + 1 :] == ["-n", "1", "agent", "0", ":", "-n", "1", "agent", "1"]
    (many,) = OpenMpi().launch([["agent", str(rank)] for rank in range(3)])
    assert {word for word in set(many) - set(few) if "=" in word} == {
        "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe=1",
    }


def test_the_launcher_of_another_mpi_will_not_do(installed: Path) -> None:
    put(installed / "a", "mpiexec", "mpiexec (Open MPI) 5")
    reason = search(Mpich.kind)
    assert isinstance(reason, str)
    assert "no mpiexec of MPICH beside this Python or in PATH: pip install mpich" in reason


@pytest.mark.parametrize("suite", OTHERS)
def test_other_suites_take_the_launcher_of_the_library_that_mpi4py_loads(
    installed: Path, suite: ModuleType
) -> None:
    other = put(installed / "a", "mpiexec", "HYDRA build details:")
    os.environ["PATH"] = str(other.parent)  # which the fixture restores
    reason = suite.Mpi().viable("shm")
    assert reason is not None
    assert "mpi4py does not load MPICH" in reason
    search.cache_clear()
    program = put(installed / "Open MPI" / "b", "mpiexec", "mpiexec (Open MPI) 5", "libmpi.so.40")
    os.environ["PATH"] += f":{program.parent}"
    assert suite.Mpi().viable("shm") is None
    (command,) = suite.Mpi().commands([["agent", "0"], ["agent", "1"]])
    assert f"MPI4PY_LIBMPI={program.parent.parent / 'lib' / 'libmpi.so.40'}" in command
    words = ["-n", "1", "agent", "0", ":", "-n", "1", "agent", "1"]
    assert command[command.index(str(program)) + 1 :] == words


def test_a_library_that_mpi4py_does_not_load_is_told(installed: Path) -> None:
    program = put(installed / "a", "mpiexec.hydra", "HYDRA build details:")
    assert search(Mpich.kind) == (
        f"mpi4py does not load MPICH, whose mpiexec is {program}, but says: libmpi.so.12"
    )


@pytest.mark.parametrize(
    ("contender", "package"),
    [(Mpich, "mpich"), (OpenMpi, "openmpi"), *((suite.Mpi, "mpich") for suite in OTHERS)],
)
def test_mpi4py_is_needed(
    contender: type[Contender], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi, "find_spec", lambda name: None)
    search.cache_clear()
    try:
        reason = contender().viable("shm")
    finally:
        search.cache_clear()
    assert reason == f"mpi4py is not installed: pip install mpi4py {package}"
