# SPDX-License-Identifier: Apache-2.0
"""What ``tensorwire doctor`` says about RDMA."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwire.observe import host, loopback
from tensorwire.observe.doctor import Finding, size

Transfer = Callable[[Any, float], int]
"""As ``loopback.transfer``."""

LOOPBACK_SECONDS = 30.0
LIBRARY = "apt-get install libibverbs1 ibverbs-providers  # or dnf install libibverbs"
CHOSEN = "chosen: RoCE v2 before v1, IPv4 before global IPv6 before link-local"


@dataclass(frozen=True)
class Gid:
    """An address of a port. kind: ``InfiniBand``, ``RoCE v1`` or ``RoCE v2``."""

    index: int
    kind: str
    address: str


@dataclass(frozen=True)
class Port:
    """name: with the device's, as in TENSORWIRE_VERBS_DEVICE. state: as ibv_devinfo writes it.
    layer: ``InfiniBand`` or ``Ethernet``. mtu: bytes. megabits: per second. numa_node: of the
    device. megabits, numa_node, chosen_gid: -1 where there is none, or it is not known.
    chosen_gid: the index of the address that links use. unusable: why links cannot use the device.
    """

    name: str
    state: str
    layer: str
    lid: int
    mtu: int
    megabits: int
    numa_node: int
    chosen_gid: int
    unusable: str
    used: bool
    gids: tuple[Gid, ...]

    @property
    def device(self) -> str:
        return self.name.rpartition(":")[0]


@dataclass(frozen=True)
class Rdma:
    """why_not: why links cannot use RDMA here; empty when they can. ports: those that the library
    shows. devices: those that the kernel has. emulated: those of them that are software.
    kernel: whether it lets programs at them. readable: whether this user may open them.
    gid_by_setting: whether the user has set the index of the address."""

    why_not: str = ""
    ports: tuple[Port, ...] = ()
    devices: tuple[str, ...] = ()
    emulated: tuple[str, ...] = ()
    kernel: bool = True
    readable: bool = True
    gid_by_setting: bool = False


def look() -> Rdma:
    """Looks at the host; changes nothing."""
    from tensorwire import _core, environment

    facts = _core.host()["transports"]["verbs"]
    nodes = [*Path("/dev/infiniband").glob("uverbs*")]
    return Rdma(
        why_not=facts["why_not"],
        ports=ports(facts.get("ports", ())),
        devices=host.rdma_devices(),
        emulated=host.emulated_rdma(),
        kernel=Path("/sys/class/infiniband_verbs").is_dir(),
        readable=bool(nodes) and all(os.access(node, os.R_OK | os.W_OK) for node in nodes),
        gid_by_setting=bool(environment.given().get("TENSORWIRE_VERBS_GID_INDEX")),
    )


def ports(found: Iterable[Mapping[str, Any]]) -> tuple[Port, ...]:
    """Of the records that the runtime has of them."""
    return tuple(
        Port(**{**port, "used": bool(port["used"]), "gids": _gids(port["gids"])}) for port in found
    )


def _gids(found: Iterable[Mapping[str, Any]]) -> tuple[Gid, ...]:
    return tuple(sorted((Gid(**gid) for gid in found), key=lambda gid: gid.index))


def examine(found: Rdma) -> list[Finding]:
    """Judges what was found. Without any device nothing is wrong."""
    return [_way(found), *(_port(found, port) for port in found.ports)]


def _way(found: Rdma) -> Finding:
    if not found.why_not:
        return Finding("RDMA", "yes", "ok", "peers that have a device, too, get verbs")
    if not found.devices:
        return Finding("RDMA", "no", "ok", found.why_not)
    devices = ", ".join(found.devices)
    if not found.kernel:
        mend = "modprobe ib_uverbs"
    elif not found.readable:
        mend = "docker run --device=/dev/infiniband  # or give this user access to it"
    elif "libibverbs" in found.why_not:
        mend = LIBRARY
    elif any(port.state == "PORT_INIT" for port in found.ports):
        mend = "systemctl start opensm  # on one host of the InfiniBand network"
    else:
        mend = "ibv_devinfo; rdma link  # shows devices and ports"
    return Finding("RDMA", f"not by {devices}", "warn", found.why_not, mend)


def _port(found: Rdma, port: Port) -> Finding:
    words = [port.state.removeprefix("PORT_").lower(), port.layer]
    if port.megabits > 0:
        words.append(f"{port.megabits / 1000:g} Gbit/s")
    words.append(f"MTU {port.mtu}")
    if port.lid:
        words.append(f"LID {port.lid}")
    gid = next((gid for gid in port.gids if gid.index == port.chosen_gid), None)
    if gid is not None:
        words.append(f"GID {gid.index}: {gid.address} ({gid.kind})")
    if port.numa_node >= 0:
        words.append(f"NUMA node {port.numa_node}")
    meaning = port.unusable or ("links use it" if port.used else "links do not use it")
    if port.device in found.emulated:
        meaning += "; emulated by the kernel, so its speed says nothing"
    if gid is not None and len(port.gids) > 1:
        others = ", ".join(str(other.index) for other in port.gids if other is not gid)
        how = "by TENSORWIRE_VERBS_GID_INDEX" if found.gid_by_setting else CHOSEN
        meaning += f"; other GIDs: {others} ({how})"
    return Finding(f"RDMA {port.name}", ", ".join(words), "ok", meaning)


def examine_loopback(
    timeout: float = LOOPBACK_SECONDS, transfer: Transfer = loopback.transfer
) -> Finding:
    """Sends bytes through the adapter and back. timeout: seconds for one call."""
    from tensorwire.rpc.choice import policy

    name = "RDMA loopback"
    try:
        policy("verbs", ())
    except ValueError as error:
        return Finding(name, "not tried", "ok", str(error))
    try:
        nbytes = transfer("verbs", timeout)
    except loopback.LoopbackError as error:
        mend = "TENSORWIRE_FORBID=verbs  # until it works: calls go by TCP then"
        return Finding(name, "failed", "fail", str(error), mend)
    return Finding(name, f"{size(nbytes)} there and back", "ok", "every byte came back")


def examine_host(
    look: Callable[[], Rdma] = look, transfer: Transfer = loopback.transfer
) -> tuple[list[Finding], Rdma]:
    """The findings about this host, and what they are made of."""
    found = look()
    findings = examine(found)
    if not found.why_not:
        findings.append(examine_loopback(transfer=transfer))
    return findings, found
