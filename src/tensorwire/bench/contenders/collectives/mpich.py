# SPDX-License-Identifier: Apache-2.0
"""MPICH, through mpi4py. Its ranks spin while they wait, whatever the number of processors."""

from __future__ import annotations

from tensorwire.bench.suites.collectives.mpi import Kind, MpiContender


class Mpich(MpiContender):
    kind = Kind(
        package="mpich",
        launchers=("mpiexec.hydra", "mpiexec.mpich", "mpiexec"),
        says=("HYDRA",),
        library="libmpi.so.12",
        called="MPICH",
    )
