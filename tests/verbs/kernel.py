# SPDX-License-Identifier: Apache-2.0
"""What the kernel knows of RDMA, and the wire between the two devices of the test machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEVICES = Path("/sys/class/infiniband")
HOSTS = {"veth0": "10.77.0.1", "veth1": "10.77.0.2"}  # as tests/verbs/vm/guest.sh sets them up


def command(line: str) -> str:
    done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def objects(kind: str, pid: int | None = None) -> list[dict[str, Any]]:
    """Queue pairs (``qp``), registrations (``mr``), ``cq`` and ``pd`` of all user processes but
    this one, which has looked whether there are devices, or of one. What the kernel calls their pid
    is the thread that made them."""
    found = json.loads(command(f"rdma -j -dd resource show {kind}") or "[]")

    def of(process: int, one: dict[str, Any]) -> bool:
        return "pid" in one and Path(f"/proc/{process}/task/{one['pid']}").exists()

    if pid is not None:
        return [one for one in found if of(pid, one)]
    return [one for one in found if one.get("comm") != "ib_core" and not of(os.getpid(), one)]


def resources(pid: int | None = None) -> Counter[str]:
    return Counter({kind: len(objects(kind, pid)) for kind in ("qp", "mr", "cq", "pd")})


def counted(what: str, *devices: str) -> int:
    """A counter of the emulator's, such as ``rcvd_pkts`` or ``completer_retry_err``, summed up."""
    ports = (DEVICES / device / "ports/1/hw_counters" for device in devices)
    return sum(int((counters / what).read_text()) for counters in ports)


def wire_is_empty() -> bool:
    """Whether what was sent has left both queues of the wire."""
    shown = (command(f"tc -s -j qdisc show dev {device} root") for device in HOSTS)
    return all(one["backlog"] == 0 for text in shown for one in json.loads(text))


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    """Whether the condition comes true before the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@contextlib.contextmanager
def disturbed(*disturbance: str) -> Iterator[None]:
    """Both directions of the wire, with what ``tc netem`` is told: ``"loss 5%", "delay 20ms"``."""
    what = " ".join(disturbance)
    try:
        for device in HOSTS:
            command(f"tc qdisc replace dev {device} root netem limit 100000 {what}")
        yield
    finally:
        for device in HOSTS:
            command(f"tc qdisc del dev {device} root")


@contextlib.contextmanager
def cut() -> Iterator[None]:
    """The wire is out: its one end is down, and the other one has no carrier."""
    command("ip link set veth1 down")
    try:
        yield
    finally:
        command("ip link set veth1 up")
        # What the kernel forgets of a device that goes down.
        near, far = HOSTS["veth1"], HOSTS["veth0"]
        command(f"ip route replace {far} dev veth1 src {near} table 101")
        for device, other in (("veth0", "veth1"), ("veth1", "veth0")):
            mac = Path(f"/sys/class/net/{other}/address").read_text().strip()
            command(f"ip neigh replace {HOSTS[other]} lladdr {mac} dev {device}")
