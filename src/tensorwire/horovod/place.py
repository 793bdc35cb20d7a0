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

# Names of a launcher's rank and size. Slurm's are those of a step: a batch script has others.
_LAUNCHERS: Final = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_JOBS: Final = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
_ADDRESS: Final = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
_PORT: Final = "HOROVOD_GLOO_RENDEZVOUS_PORT"
# Of a launcher that goes on when a rank is lost, for those that it starts.
_STORE: Final = "TENSORWIRE_STORE"
_AGAIN: Final = "TENSORWIRE_REJOIN"


@dataclass(frozen=True)
class Place:
    """``address``: host:port, where rank 0 serves the store, or, with ``served``, another process
    does; empty: ranks of one launcher on one host meet in ``folder``. ``again``: the job has begun
    without this process."""

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
    for rank_name, size_name in _LAUNCHERS:
        if rank_name in environment and size_name in environment:
            rank, size = _number(environment, rank_name), _number(environment, size_name)
            if not 0 <= rank < size:
                raise ValueError(f"{rank_name}={rank} is no rank of {size_name}={size}")
            address = _address(environment)
            folder = "" if address or size == 1 else _folder(environment, rank_name)
            return Place(rank, size, address, folder)
    if "TF_CONFIG" in environment:
        found = _of_cluster(environment["TF_CONFIG"])
        store = environment.get(_STORE, "")
        if not store:
            return found
        return replace(found, address=store, served=True, again=bool(environment.get(_AGAIN)))
    return Place(0, 1)


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
        return f"{environment['MASTER_ADDR']}:{_number(environment, 'MASTER_PORT') + 1}"
    return ""


def _folder(environment: Mapping[str, str], rank_name: str) -> str:
    """The same for all processes of one launcher on this host, and no other's."""
    job = next((environment[name] for name in _JOBS if environment.get(name)), "")
    if environment.get("SLURM_JOB_ID") and environment.get("SLURM_STEP_ID"):
        job = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    if not job and rank_name == "PMI_RANK":  # MPICH's proxy is the parent of its host's ranks
        parent = os.getppid()
        stat = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
        job = f"{parent}.{stat[19]}"  # field 22: when it started
    if not job:
        raise ValueError(
            f"{rank_name} is set, but not where the ranks meet: set MASTER_ADDR to the address of "
            "rank 0's host, and MASTER_PORT to a number below a free port"
        )
    base = environment.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    name = job.replace("/", "_")
    return str(Path(base) / f"tensorwire-horovod-{os.geteuid()}-{name}")


def _of_cluster(text: str) -> Place:
    try:
        config = msgspec.json.decode(text, type=_Config)
        jobs: list[str] = [job for job in ("chief", "master", "worker") if job in config.cluster]
        before = jobs[: jobs.index(config.task.type)]
        tasks = [address for job in jobs for address in config.cluster[job]]
        rank = sum(len(config.cluster[job]) for job in before) + config.task.index
        address = tasks[0]
    except (msgspec.MsgspecError, ValueError, IndexError) as error:
        raise ValueError(f"TF_CONFIG names no worker: {error}") from None
    return Place(rank, len(tasks), address)
