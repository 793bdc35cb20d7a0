# SPDX-License-Identifier: Apache-2.0
"""Where figures were made: host, versions, and the load that was there before."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tensorwire.bench.harness import noise
from tensorwire.bench.harness.contenders import Role
from tensorwire.observe.host import (
    congestion_control,
    emulated_rdma,
    governors,
    huge_pages,
    numa_nodes,
    rdma_devices,
    same_host_congestion_control,
    shared_huge_pages,
)

PACKAGES = ("tensorwire", "grpcio", "numpy")
CHECKOUT = Path(__file__).resolve().parents[4]
"""Where this file is part of one."""
_DOCUMENTS = (":!docs", ":!*.md")
_SOURCES = ("binding", "core", "src")
"""Where a file that git does not know is none that a run or an editor has left."""
_VARIABLES = (
    *("TENSORWIRE_", "TF_", "XLA_", "GRPC_", "HOROVOD_"),
    *("UCX_", "OMPI_", "PMIX_", "MPICH_", "MPIR_", "GLOO_", "TP_", "NCCL_", "RAY_", "NIXL_", "MC_"),
    *("OMP_", "OPENBLAS_", "MKL_", "GLIBC_", "MALLOC_", "LD_PRELOAD"),
)
"""What the names of those begin with that set ours or a contender; MC_: Mooncake's."""
_NOT = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "_KEY", "TF_CLI_", "TF_VAR_")
"""What is in the name of one that may hold a secret, or is Terraform's."""


def describe(
    settings: Mapping[str, Any], roles: Mapping[str, Role], packages: Iterable[str] = ()
) -> dict[str, Any]:
    """The ``environment`` object of a report, made before the run; memory in bytes. roles: of
    contenders, by name. packages: whose versions are told, beside those that take part in any
    case."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": versions((*PACKAGES, *packages)),
        "commit": commit(),
        "huge_pages": {"private": huge_pages(), "shared": shared_huge_pages()},
        "governors": list(governors()),
        "numa_nodes": numa_nodes(),
        "congestion_control": {
            "default": congestion_control(),
            "same_host_links": same_host_congestion_control(),
        },
        "rdma": {name: rdma_kind(name) for name in rdma_devices()},
        "settings": dict(settings),
        "variables": variables(os.environ),
        "roles": dict(roles),
        "noise": {"before": noise.check(), "after": None},
        "notes": [],
        "interrupted": False,
    }


def ended(described: dict[str, Any], notes: Iterable[str], interrupted: bool) -> None:
    """Adds what is known only after the run."""
    described["noise"]["after"] = noise.check()
    described["notes"] = [*notes]
    described["interrupted"] = interrupted


def commit(root: Path = CHECKOUT) -> str:
    """Of the project, with ``-dirty`` where files differ from it that a run may depend on: not
    documents, into which figures are written while others are still measured. New sources count,
    too. Empty where it is installed without its repository."""
    if not (root / ".git").exists():
        return ""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", "--no-optional-locks", *words],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )

    with suppress(OSError, subprocess.SubprocessError):
        head = git("rev-parse", "HEAD")
        if head.returncode == 0:
            changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *_DOCUMENTS)
            new = git("ls-files", "--others", "--exclude-standard", "--", *_SOURCES)
            return head.stdout.strip() + ("-dirty" if changed.stdout + new.stdout else "")
    return ""


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those that set Tensorwire, a contender, how many threads libraries use, and what is loaded
    ahead of them."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_VARIABLES) and not any(word in name for word in _NOT)
    }


def rdma_kind(device: str) -> str:
    return "emulated" if device in emulated_rdma() else "hardware"


def caveats(transports: Iterable[str]) -> list[str]:
    """What a reader of figures over these transports has to know."""
    emulated = emulated_rdma()
    if "verbs" not in transports or not emulated:
        return []
    return [
        f"{', '.join(emulated)}: RDMA emulated by the kernel. Times over verbs show that it works, "
        "and say nothing about RDMA hardware."
    ]


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor()


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
