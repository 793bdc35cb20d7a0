# SPDX-License-Identifier: Apache-2.0
"""Runs a cluster of processes on this machine: one command, once for each task of each job.

    cluster = launch.cluster("ps=1,worker=2")
    ended = launch.run(cluster, ["python", "train.py", "--task_index={index}"])

Every process finds the cluster in ``TF_CONFIG`` and in the placeholders of its command. All of them
end when one fails, when the last one that returns has returned, or when this process is told to.

``follow`` runs one program below this process, and ``become`` in its place.
"""

from __future__ import annotations

from tensorwire.launch.jobs import Cluster, Task, cluster, free_ports
from tensorwire.launch.output import Prefixed
from tensorwire.launch.processes import (
    DRAIN_SECONDS,
    GRACE_SECONDS,
    PASSED_ON,
    TIMED_OUT,
    Command,
    Ended,
    Output,
    run,
)
from tensorwire.launch.program import Finished, NotStartedError, become, follow

__all__ = [
    "DRAIN_SECONDS",
    "GRACE_SECONDS",
    "PASSED_ON",
    "TIMED_OUT",
    "Cluster",
    "Command",
    "Ended",
    "Finished",
    "NotStartedError",
    "Output",
    "Prefixed",
    "Task",
    "become",
    "cluster",
    "follow",
    "free_ports",
    "run",
]
