# SPDX-License-Identifier: Apache-2.0
"""The library that JAX takes for an MPI: where it is, and what it has done."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tensorwire import _core

PATH: Final = Path(_core.__file__).with_name("libtensorwire_mpi.so")
_LIBRARY: Final = "MPITRAMPOLINE_LIB"
_IMPLEMENTATION: Final = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"


def environment() -> dict[str, str]:
    """What a program's environment needs before it imports JAX."""
    return {_LIBRARY: str(PATH), _IMPLEMENTATION: "mpi"}


def enable() -> None:
    """Has JAX run its collectives between processes over groups. Call it before JAX is imported:
    it looks for the library then, and never again. RuntimeError when JAX is there already."""
    added = environment()
    if "jaxlib" in sys.modules and any(os.environ.get(name) != added[name] for name in added):
        raise RuntimeError(
            "JAX has been imported, and has looked for its MPI: call tensorwire.jax.enable() "
            "before the first import of jax, or start the program by tensorwire run"
        )
    os.environ.update(added)


class Communicator(NamedTuple):
    """A group of ranks that JAX uses: all of them, or those along some axes of a mesh."""

    size: int
    """How many ranks there are."""
    fabric: str
    """How its data moves, as :attr:`tensorwire.collective.Group.fabric` says it."""
    operations: dict[str, dict[str, dict[str, int]]]
    """As :meth:`tensorwire.collective.Group.statistics` gives it."""


def statistics() -> list[Communicator]:
    """Of each communicator of this process, that of all ranks first; none before JAX has met the
    other ranks, which it does when it first looks for its devices."""
    found: list[Communicator] = []

    def visit(_: int, size: int, fabric: bytes) -> None:
        found.append(Communicator(size, fabric.decode(), {}))

    def operation(_: int, name: bytes, way: bytes, operations: int, count: int) -> None:
        of = found[-1].operations.setdefault(name.decode(), {})
        of[way.decode()] = {"operations": operations, "bytes": count}

    load().tensorwire_mpi_statistics(VISIT(visit), OPERATION(operation), None)
    return found


VISIT: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
OPERATION: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64
)


def load() -> ctypes.CDLL:
    """The same library that JAX has loaded: one file is loaded once."""
    library = ctypes.CDLL(str(PATH))
    library.tensorwire_mpi_statistics.argtypes = [VISIT, OPERATION, ctypes.c_void_p]
    library.tensorwire_mpi_statistics.restype = None
    return library
