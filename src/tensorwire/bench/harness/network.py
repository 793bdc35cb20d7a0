# SPDX-License-Identifier: Apache-2.0
"""A network on one host: each process in a network namespace of its own, as if it were a host, with
a link of a certain rate to a switch between them all. Linux only; needs root."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

MOST_HOSTS: Final = 250
REACHING: Final = ("tcp",)
"""The transports that get from one namespace to the next: a link there has no RDMA device."""
_SECONDS: Final = 20.0
"""For a command of ``ip`` or ``tc``, and for a namespace to be there."""
_QUEUE: Final = "20ms"
"""What waits longer than that for its turn on a link is dropped, as by a switch."""
_MOST_PACKETS: Final = 100_000
"""Under way on a link with a delay."""
_LEAST_BURST: Final = 128 << 10
_BURST_SECONDS: Final = 1e-3
_LINK: Final = r"(?P<rate>[1-9]\d*(\.\d+)?[kmg]bit)(,(?P<delay>\d+(\.\d+)?(us|ms|s)))?"
_PREFIXES: Final = {"k": 1e3, "m": 1e6, "g": 1e9}


class NetworkError(Exception):
    """The network cannot be made here; the text says why."""


@dataclass(frozen=True)
class Link:
    """rate: as of ``tc``, ``10gbit``. delay: one way, ``0.1ms``; empty: none is added."""

    rate: str
    delay: str = ""

    @classmethod
    def of(cls, text: str) -> Link:
        """From ``10gbit`` or ``10gbit,0.1ms``. Raises ValueError."""
        found = re.fullmatch(_LINK, text.strip().lower(), re.ASCII)
        if found is None:
            raise ValueError(f"{text!r} is no link: write 10gbit, or 10gbit,0.1ms")
        return cls(found["rate"], found["delay"] or "")

    def discipline(self) -> str:
        """The queue at each end of a link, as ``tc`` takes it."""
        if self.delay:
            return f"netem rate {self.rate} delay {self.delay} limit {_MOST_PACKETS}"
        bytes_per_s = float(self.rate[:-4]) * _PREFIXES[self.rate[-4]] / 8
        burst = max(_LEAST_BURST, int(bytes_per_s * _BURST_SECONDS))
        return f"tbf rate {self.rate} burst {burst} latency {_QUEUE}"


@dataclass(frozen=True)
class Host:
    """A namespace. enter: words ahead of a command that is to run there."""

    address: str
    enter: tuple[str, ...]


@contextmanager
def hosts(link: Link, count: int) -> Iterator[list[Host]]:
    """So many, while the context is open. Raises NetworkError."""
    if not 0 < count <= MOST_HOSTS:
        raise NetworkError(f"such a network has 1 to {MOST_HOSTS} processes, not {count}")
    with ExitStack() as stack:
        pids = [stack.enter_context(_namespace()) for _ in range(count + 1)]
        inside = [("nsenter", f"--net=/proc/{pid}/ns/net") for pid in pids]
        (_, *members), (switch, *entries) = pids, inside
        _run(switch, "ip link add switch type bridge")
        _run(switch, "ip link set switch up")
        found = []
        for number, (pid, enter) in enumerate(zip(members, entries, strict=True), 1):
            port, address = f"port{number}", f"10.77.0.{number}"
            _run(switch, f"ip link add {port} type veth peer name eth0 netns {pid}")
            _run(switch, f"ip link set {port} master switch up")
            _run(enter, f"ip address add {address}/24 dev eth0")
            _run(enter, "ip link set lo up")
            _run(enter, "ip link set eth0 up")
            _run(switch, f"tc qdisc add dev {port} root {link.discipline()}")
            _run(enter, f"tc qdisc add dev eth0 root {link.discipline()}")
            found.append(Host(address, enter))
        yield found


@contextmanager
def _namespace() -> Iterator[int]:
    """The process that keeps it, until its standard input ends: with this process at the latest."""
    command = ["unshare", "--net", "sh", "-c", "echo; exec cat"]
    try:
        keeper = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the bench, which ends all in order
        )
    except OSError as error:
        raise NetworkError(
            f"a network of namespaces needs unshare of util-linux: {error}"
        ) from None
    with keeper:
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        assert keeper.stdin is not None
        if not keeper.stdout.read(1):
            told = keeper.stderr.read().decode(errors="replace").strip()
            raise NetworkError(f"no network namespace can be made, which needs root: {told}")
        try:
            yield keeper.pid
        finally:
            keeper.stdin.close()
            keeper.kill()


def _run(enter: tuple[str, ...], command: str) -> None:
    try:
        subprocess.run(
            [*enter, *command.split(" ")], check=True, capture_output=True, timeout=_SECONDS
        )
    except OSError as error:
        raise NetworkError(f"a network of namespaces needs nsenter, ip and tc: {error}") from None
    except subprocess.CalledProcessError as error:
        told = error.stderr.decode(errors="replace").strip()
        hint = " (a delay needs the kernel's module sch_netem)" * ("netem" in command)
        raise NetworkError(f"`{command}` has failed: {told}{hint}") from None
    except subprocess.TimeoutExpired:
        raise NetworkError(f"`{command}` does not end") from None
