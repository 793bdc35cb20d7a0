# SPDX-License-Identifier: Apache-2.0
"""What this host offers to a process: limits, kernel features, memory, congestion controls."""

from __future__ import annotations

import os
import platform
import resource
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = -1


@dataclass(frozen=True)
class Facts:
    """Sizes in bytes, ``UNLIMITED`` where there is no limit; what the kernel can do as booleans.

    cpus: that this process may use. memory_free: that can be had without swapping.
    memory_limit: of the control groups around this process. tcp_receive, tcp_send: up to which
    the kernel grows the buffers of a TCP socket. congestion: what a new TCP socket gets;
    congestion_same_host: what Tensorwire's links within a host get; congestion_asked: by what
    setting. runtime_folder: where the sockets of the data plane are made. shared_huge_pages: when
    the kernel gives them to shared memory, in its own words; empty where it has none. rdma:
    devices. uid: of this process.
    local: transports between processes of one user on one host. checks: what the transports say of
    this host, each ``subject``, ``value``, ``verdict``, ``meaning`` and ``mend``.
    """

    kernel: str
    machine: str
    cpus: int
    uid: int
    pagemap_scan: bool
    memory_free: int
    memory_limit: int
    memlock: int
    nofile: int
    tcp_receive: int
    tcp_send: int
    congestion: str
    congestion_same_host: str
    congestion_asked: str
    runtime_folder: str
    runtime_folder_writable: bool
    dev_shm: int
    shared_huge_pages: str
    rdma: tuple[str, ...]
    local: tuple[str, ...]
    checks: tuple[Mapping[str, str], ...]


def facts() -> Facts:
    """Looks at the host; changes nothing."""
    from tensorwire import _core, transports

    native = _core.host()
    congestion_asked = str(_core.settings()["tcp_congestion"])
    runtime_folder = str(native["runtime_folder"])
    return Facts(
        kernel=platform.release(),
        machine=platform.machine(),
        cpus=len(os.sched_getaffinity(0)),
        uid=os.geteuid(),
        pagemap_scan=bool(native["pagemap_scan"]),
        memory_free=memory_free(),
        memory_limit=int(native["memory_limit"]) or UNLIMITED,
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        tcp_receive=largest_buffer("tcp_rmem"),
        tcp_send=largest_buffer("tcp_wmem"),
        congestion=congestion_control(),
        congestion_same_host=same_host_congestion_control(congestion_asked),
        congestion_asked=congestion_asked,
        runtime_folder=runtime_folder,
        runtime_folder_writable=os.access(runtime_folder, os.W_OK | os.X_OK),
        dev_shm=file_system_size("/dev/shm"),
        shared_huge_pages=shared_huge_pages(),
        rdma=rdma_devices(),
        local=tuple(name for name in transports.names() if transports.is_local(name)),
        checks=tuple(
            check for found in native["transports"].values() for check in found.get("checks", ())
        ),
    )


def memory_free() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return UNLIMITED


def largest_buffer(name: str) -> int:
    return int(Path(f"/proc/sys/net/ipv4/{name}").read_text().split()[2])


def file_system_size(path: str) -> int:
    """0 when there is no such file system."""
    try:
        found = os.statvfs(path)
    except FileNotFoundError:
        return 0
    return found.f_frsize * found.f_blocks


def shared_huge_pages(
    path: Path = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
) -> str:
    """Of ``always within_size [never]`` the one in brackets."""
    return _bracketed(path)


def huge_pages(path: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled")) -> str:
    """When the kernel gives them to private memory, in its own words; empty where it has none."""
    return _bracketed(path)


def _bracketed(path: Path) -> str:
    text = path.read_text() if path.exists() else ""
    return text.partition("[")[2].partition("]")[0]


def governors(root: Path = Path("/sys/devices/system/cpu")) -> tuple[str, ...]:
    """By which the clocks of processors are set, each once; empty where the host does not say."""
    files = root.glob("cpu[0-9]*/cpufreq/scaling_governor")
    return tuple(sorted({file.read_text().strip() for file in files}))


def numa_nodes(root: Path = Path("/sys/devices/system/node")) -> dict[str, str]:
    """The processors of each node, as the kernel lists them; empty where it knows no nodes."""
    files = sorted(root.glob("node[0-9]*/cpulist"))
    return {file.parent.name: file.read_text().strip() for file in files}


def rdma_devices(root: Path = Path("/sys/class/infiniband")) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in root.iterdir())) if root.is_dir() else ()


def named_devices() -> tuple[str, ...]:
    """Devices that the settings in force name, whether this host has them or not."""
    from tensorwire import _core

    transports = _core.host()["transports"].values()
    return tuple(name for facts in transports for name in facts.get("named", ()))


def emulated_rdma(root: Path = Path("/sys/class/infiniband")) -> tuple[str, ...]:
    """Devices that are the kernel's own software (Soft-RoCE, Soft-iWARP) over a network card."""
    return tuple(name for name in rdma_devices(root) if _emulated(root / name))


def _emulated(device: Path) -> bool:
    if (device / "parent").exists() or not (device / "device").exists():
        return True
    description = device / "node_desc"
    return description.exists() and description.read_text().startswith("Software iWARP")


def congestion_control() -> str:
    """What the host gives to a new TCP socket."""
    with socket.socket() as probe:
        return _congestion_control(probe)


def same_host_congestion_control(setting: str = "auto") -> str:
    """What Tensorwire's links within a host get. ``setting``: of TENSORWIRE_TCP_CONGESTION.

    The model-based default of some hosts (bbr) paces loopback far below what it can carry, so
    that a window-based one is set there. In the place of a name that the kernel refuses they get
    reno.
    """
    wanted = {"auto": ("cubic", "reno"), "system": ()}.get(setting, (setting, "reno"))
    with socket.socket() as probe:
        for name in wanted:
            try:
                probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
            except OSError:
                continue
            break
        return _congestion_control(probe)


def _congestion_control(connection: socket.socket) -> str:
    name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.partition(b"\0")[0].decode()
