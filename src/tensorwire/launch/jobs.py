# SPDX-License-Identifier: Apache-2.0
"""What a cluster on this machine consists of, and how its processes learn of it."""

from __future__ import annotations

import json
import random
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
MOST_TASKS = 256
LOWEST_PORT = 10_000

JOB = re.compile(r"[a-z][a-z0-9_]*")
PLACEHOLDER = re.compile(r"\{(?:(job)|(index)|([a-z][a-z0-9_]*)_hosts)\}")


@dataclass(frozen=True)
class Task:
    """One process: ``worker 0`` is the first one of job ``worker``. address: its ``host:port``."""

    job: str
    index: int
    address: str

    def __str__(self) -> str:
        return f"{self.job} {self.index}"


@dataclass(frozen=True)
class Cluster:
    """Jobs by name, each with its tasks in order."""

    jobs: Mapping[str, tuple[Task, ...]]

    @property
    def tasks(self) -> list[Task]:
        return [task for tasks in self.jobs.values() for task in tasks]

    def hosts(self, job: str) -> list[str]:
        """Addresses of a job's tasks. ValueError when there is no such job."""
        if job not in self.jobs:
            raise ValueError(f"the cluster has no job {job!r}, only {', '.join(self.jobs)}")
        return [task.address for task in self.jobs[job]]

    def tf_config(self, task: Task) -> str:
        """What TensorFlow expects in ``TF_CONFIG``."""
        jobs = {job: self.hosts(job) for job in self.jobs}
        return json.dumps({"cluster": jobs, "task": {"type": task.job, "index": task.index}})

    def fill(self, command: Sequence[str], task: Task) -> list[str]:
        """``command`` for a task: ``{job}``, ``{index}`` and, for every job, ``{<job>_hosts}`` (a
        comma list) are replaced; other braces stay.

        Raises ValueError for hosts of a job that is not there.
        """

        def value(match: re.Match[str]) -> str:
            if match[1]:
                return task.job
            return str(task.index) if match[2] else ",".join(self.hosts(match[3]))

        return [PLACEHOLDER.sub(value, word) for word in command]

    @property
    def serving(self) -> frozenset[str]:
        """The jobs that, by TensorFlow's conventions, serve the others and never return: ``ps``;
        where there is a ``chief`` beside it, which then drives them, the workers, too."""
        found = {"ps"} & set(self.jobs)
        if found and "chief" in self.jobs:
            found |= {"worker"} & set(self.jobs)
        return frozenset(found)


def cluster(spec: str) -> Cluster:
    """A cluster on free ports of the loopback interface.

    spec: ``job=count`` for each job, separated by commas, such as ``ps=1,worker=2``.
    Raises ValueError that says what is wrong with it.
    """
    counts: dict[str, int] = {}
    for part in spec.split(","):
        job, equals, count = part.strip().partition("=")
        if not (equals and JOB.fullmatch(job) and count.isdecimal() and int(count) >= 1):
            raise ValueError(
                f"{part.strip()!r} is not job=count with a count of 1 or more, as in ps=1,worker=2"
            )
        if job in counts:
            raise ValueError(f"job {job!r} is there twice")
        counts[job] = int(count)
    if sum(counts.values()) > MOST_TASKS:
        raise ValueError(f"{sum(counts.values())} processes: at most {MOST_TASKS} are permitted")
    ports = iter(free_ports(sum(counts.values())))
    return Cluster(
        {
            job: tuple(Task(job, index, f"{HOST}:{next(ports)}") for index in range(count))
            for job, count in counts.items()
        }
    )


def free_ports(count: int) -> list[int]:
    """TCP ports of the loopback interface on which nobody listens, from below the range out of
    which the kernel gives ports to clients: those stay free until somebody asks for them."""
    clients_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = list(range(LOWEST_PORT, clients_from)) or [0] * count
    random.SystemRandom().shuffle(ports)
    held: list[socket.socket] = []
    try:
        for port in ports:
            if len(held) == count:
                break
            held.append(socket.socket())
            try:
                held[-1].bind((HOST, port))
            except OSError:
                held.pop().close()
        if len(held) < count:
            raise OSError(f"there are no {count} free ports on {HOST}")
        return [int(each.getsockname()[1]) for each in held]
    finally:
        for each in held:
            each.close()
