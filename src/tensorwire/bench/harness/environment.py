# SPDX-License-Identifier: Apache-2.0
"""Where figures were made: host, versions, and the load that was there before."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tensorwire.observe.host import (
    congestion_control,
    emulated_rdma,
    rdma_devices,
    same_host_congestion_control,
)

PACKAGES = ("tensorwire", "grpcio", "numpy")


def describe(settings: Mapping[str, Any], packages: Iterable[str] = ()) -> dict[str, Any]:
    """The ``environment`` object of a report; memory in bytes. packages: whose versions are told,
    beside those that take part in any case."""
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
        "congestion_control": {
            "default": congestion_control(),
            "same_host_links": same_host_congestion_control(),
        },
        "rdma": {name: rdma_kind(name) for name in rdma_devices()},
        "settings": dict(settings),
        "notes": [],
        "interrupted": False,
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
