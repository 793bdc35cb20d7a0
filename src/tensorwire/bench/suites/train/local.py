# SPDX-License-Identifier: Apache-2.0
"""A whole cluster on this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwire import launch, signals
from tensorwire.bench.suites.train.options import SERVERLESS, OptionError, Options
from tensorwire.tensorflow import build

JOBS = ("ps", "worker")
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"

Lines = Callable[[str, int, str], None]
"""Called with a job, an index, and a line of its standard output."""


class ClusterError(RuntimeError):
    """The cluster ended too early. code: that of the process that failed first, 128 + n when signal
    n has ended all, or 1 when a process left no figures. signalled: the signal that this process
    got, if it got one."""

    def __init__(self, code: int, message: str, signalled: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.signalled = signalled


@dataclass(frozen=True)
class Outcome:
    """What the processes of one run wrote down, in the order of their numbers."""

    workers: list[dict[str, Any]]
    servers: list[dict[str, Any]]


def cluster(spec: str, options: Options) -> launch.Cluster:
    """For these options, on free ports. ValueError for a wrong spec, OptionError when it does
    not go together with the options."""
    found = launch.cluster(spec)
    for job in found.jobs:
        if job not in JOBS:
            raise ValueError(f"there is no job {job!r}, only ps and worker")
    if "worker" not in found.jobs:
        raise ValueError("at least one worker is needed, as in ps=1,worker=2")
    if options.variable_update in ("independent", *SERVERLESS):
        return launch.Cluster({"worker": found.jobs["worker"]})
    if "ps" not in found.jobs:
        raise ValueError(f"{options.variable_update} needs a parameter server, as in ps=1,worker=2")
    return found


def task_options(options: Options, where: launch.Cluster, task: launch.Task) -> Options:
    """Those of one process of the cluster. Independent workers do not know of each other."""
    if options.variable_update == "independent":
        return options
    return options.but(
        job_name=task.job,
        task_index=task.index,
        ps_hosts=where.hosts("ps") if "ps" in where.jobs else [],
        worker_hosts=where.hosts("worker"),
    )


def run(
    options: Options,
    spec: str,
    *,
    show: Lines | None = None,
    building: Callable[[str], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Runs the cluster to its end.

    show: gets the lines; by default they are printed with the names of their processes.
    building: gets those that say on standard error how far a process has built the plugin.
    Raises ValueError for a wrong spec, OptionError, and ClusterError.
    """
    where = cluster(spec, options)
    if options.job_name or options.ps_hosts or options.worker_hosts:
        raise OptionError("job_name", "--local makes the cluster itself: no job_name, no hosts")
    for task in where.tasks:
        task_options(options, where, task).check()
    with signals.folder("tensorwire-train-") as folder:

        def output_of(task: launch.Task) -> Path:
            return Path(folder) / f"{task.job}{task.index}.json"

        def command(task: launch.Task) -> list[str]:
            mine = task_options(options, where, task).but(output=output_of(task))
            return [sys.executable, "-m", "tensorwire.bench.suites.train", *mine.arguments()]

        def take(task: launch.Task, stream: str, line: bytes) -> None:
            text = line.decode(errors="replace").rstrip("\r\n")
            if stream == "stdout" and show is not None:
                show(task.job, task.index, text)
            elif building is not None and text.startswith(build.BUILDING):
                building(text)

        # TensorFlow's native log is long and says nothing here that its exceptions do not say.
        quiet = {LOG_LEVEL: os.environ.get(LOG_LEVEL, "3"), **(environment or {})}
        ended = launch.run(where, command, environment=quiet, output=None if show is None else take)
        if ended.code:
            raise ClusterError(ended.code, ended.why, ended.signalled)
        found = {task: _written(output_of(task), task) for task in where.tasks}
    return Outcome(
        [found[task] for task in where.jobs["worker"]],
        [found[task] for task in where.jobs.get("ps", ())],
    )


def _written(path: Path, task: launch.Task) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):  # none, or a part of them
        why = f"{task} left no figures: it was killed, or could not write them"
        raise ClusterError(1, why) from None
