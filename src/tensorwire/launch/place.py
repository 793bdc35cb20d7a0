# SPDX-License-Identifier: Apache-2.0
"""This process's rank, and where the ranks meet, from what launchers leave in the environment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

_MPICH_HERE: Final = "MPI_LOCALNRANKS"
# Names of a launcher's rank and size, and of how many ranks this host has. Slurm's are those of a
# step: a batch script has others.
_LAUNCHERS: Final = (
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE"),
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", _MPICH_HERE),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""),
)
_SLURM_HOSTS: Final = "SLURM_STEP_NUM_NODES"
_JOBS: Final = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
_ADDRESS: Final = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
_PORT: Final = "HOROVOD_GLOO_RENDEZVOUS_PORT"
# Of a launcher that goes on when a rank is lost, for those that it starts.
_STORE: Final = "TENSORWIRE_STORE"
_AGAIN: Final = "TENSORWIRE_REJOIN"


_HIGHEST_PORT: Final = 65535


@dataclass(frozen=True)
class Place:
    """``address``: host:port, where rank 0 serves what the ranks meet by, or, with ``served``,
    another process does; empty: none is told. ``folder``: where ranks of one launcher, all of them
    on one host, can meet; empty: they may be on several. Where there are several ranks, one of both
    is there. ``again``: the job has begun without this process."""

    rank: int
    size: int
    address: str = ""
    folder: str = ""
    served: bool = False
    again: bool = False


class _Task(msgspec.Struct):
    type: str
    index: int


class _Config(msgspec.Struct):
    cluster: dict[str, list[str]]
    task: _Task


def find(environment: Mapping[str, str]) -> Place:
    """Without a launcher: the only rank. ValueError says what is wrong with a variable."""
    if (found := launched(environment)) is not None:
        return found
    if "TF_CONFIG" in environment:
        found = _of_cluster(environment["TF_CONFIG"])
        store = environment.get(_STORE, "")
        if not store:
            return found
        return replace(found, address=store, served=True, again=bool(environment.get(_AGAIN)))
    return Place(0, 1)


def outside(environment: Mapping[str, str]) -> dict[str, str]:
    """What processes get of this one's environment when it launches them itself: not its own rank,
    which would be that of all of them."""
    told = {rank_name for rank_name, _, _ in _LAUNCHERS} | {_STORE, _AGAIN}
    return {name: value for name, value in environment.items() if name not in told}


def launched(environment: Mapping[str, str]) -> Place | None:
    """That of a process that torchrun, mpirun, srun or Horovod's launcher has started. ValueError
    says what is wrong with a variable."""
    for rank_name, size_name, local_name in _LAUNCHERS:
        if rank_name in environment and size_name in environment:
            rank, size = _number(environment, rank_name), _number(environment, size_name)
            if not 0 <= rank < size:
                raise ValueError(f"{rank_name}={rank} is no rank of {size_name}={size}")
            if size == 1:
                return Place(rank, size)
            address = _address(environment)
            alone = _on_one_host(environment, local_name, size)
            near = not address if alone is None else alone
            job = _job(environment, rank_name) if near else ""
            if not (address or job):
                raise ValueError(
                    f"{rank_name} is set, but not where the ranks meet: set MASTER_ADDR to the "
                    "address of rank 0's host, and MASTER_PORT to a number below a free port"
                )
            return Place(rank, size, address, _folder(environment, job) if job else "")
    return None


def _on_one_host(environment: Mapping[str, str], local_name: str, size: int) -> bool | None:
    """Whether all ranks are; None: the launcher does not tell."""
    # What Slurm tells is of the step, in which another launcher may have started these ranks.
    if environment.get(local_name):
        return _number(environment, local_name) == size
    if environment.get(_SLURM_HOSTS):
        return _number(environment, _SLURM_HOSTS) == 1
    return None


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise ValueError(f"{name}={environment[name]!r} is no number") from None


def _address(environment: Mapping[str, str]) -> str:
    if environment.get(_ADDRESS) and environment.get(_PORT):
        return f"{environment[_ADDRESS]}:{_number(environment, _PORT)}"
    if environment.get("MASTER_ADDR") and environment.get("MASTER_PORT"):
        # torchrun serves a store of its own at MASTER_PORT.
        port = _number(environment, "MASTER_PORT") + 1
        if not 0 < port <= _HIGHEST_PORT:
            raise ValueError(f"MASTER_PORT={port - 1}: the port above it, {port}, is none")
        return f"{environment['MASTER_ADDR']}:{port}"
    return ""


def _job(environment: Mapping[str, str], rank_name: str) -> str:
    """The same for all processes of one launcher on this host, and no other's; empty: it is not
    told.

    It has the ids of all launchers that left one: several of the inner one may run in what the
    outer one has started, such as mpirun in a step of Slurm.
    """
    mpi = next((environment[name] for name in _JOBS if environment.get(name)), "")
    slurm = ""
    if environment.get("SLURM_JOB_ID") and environment.get("SLURM_STEP_ID"):
        slurm = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    ids = [mpi, slurm]
    port = environment.get("MASTER_PORT", "")
    if port and environment.get("TORCHELASTIC_RUN_ID"):
        ids.append(environment["TORCHELASTIC_RUN_ID"])
    # torchrun listens at the port; its name for the run is mostly "none".
    if any(ids):
        ids.append(port)
    # PMI_RANK is MPICH's, whose proxy is the parent of its host's ranks, or Slurm's own.
    if rank_name == "PMI_RANK" and not mpi and (environment.get(_MPICH_HERE) or not slurm):
        ids.append(_parent())
    return ".".join(filter(None, ids)).replace("/", "_")


def _parent() -> str:
    """The process that has started this one, and no other that ever has its number."""
    parent = os.getppid()
    stat = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
    return f"{parent}.{stat[19]}"  # field 22: when it started


def _folder(environment: Mapping[str, str], job: str) -> str:
    base = environment.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return str(Path(base) / f"tensorwire-job-{os.geteuid()}-{job}")


def _of_cluster(text: str) -> Place:
    try:
        config = msgspec.json.decode(text, type=_Config)
        jobs: list[str] = [job for job in ("chief", "master", "worker") if job in config.cluster]
        before = jobs[: jobs.index(config.task.type)]
        tasks = [address for job in jobs for address in config.cluster[job]]
        if not 0 <= config.task.index < len(config.cluster[config.task.type]):
            raise ValueError(f"there is no {config.task.type} {config.task.index}")
        rank = sum(len(config.cluster[job]) for job in before) + config.task.index
        address = tasks[0]
    except (msgspec.MsgspecError, ValueError, IndexError) as error:
        raise ValueError(f"TF_CONFIG names no worker: {error}") from None
    return Place(rank, len(tasks), address)
