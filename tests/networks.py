# SPDX-License-Identifier: Apache-2.0
"""Two hosts, as far as the kernel's namespaces make them: two networks with a cable between them,
and no folder in common by which processes could share memory."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LIMIT_SECONDS: Final = 60.0
LINE_SECONDS: Final = 90.0
"""For a rank to say something: longer than ranks wait for each other."""
ADDRESSES: Final = ("10.77.0.1", "10.77.0.2")
RANKS_OF_A_HOST: Final = 2
RANKS: Final = RANKS_OF_A_HOST * len(ADDRESSES)


class NoNetworksError(Exception):
    """They cannot be made here."""


def run(*command: str) -> str:
    done = subprocess.run(
        command, check=True, capture_output=True, timeout=LIMIT_SECONDS, text=True
    )
    return done.stdout


@dataclass
class Networks:
    """``files``: of each host, the option of ``nsenter`` that enters its network."""

    files: list[str]

    def set(self, host: int, setting: str, value: str) -> None:
        """One of ``/proc/sys/net``."""
        run("nsenter", self.files[host], "sh", "-c", f"echo {value} > /proc/sys/net/{setting}")

    def cut(self) -> None:
        """The first host loses its device, and the other one its carrier."""
        self._ip(0, "link", "set", "tw0", "down")

    def lose_all(self) -> None:
        """What leaves a host arrives nowhere, and nobody is told."""
        for host, other in enumerate(reversed(ADDRESSES)):
            nowhere = "02:00:00:00:00:01"
            self._ip(host, "neigh", "replace", other, "lladdr", nowhere, "dev", "tw0")

    def mend(self) -> None:
        self._ip(0, "link", "set", "tw0", "up")
        for host in range(len(ADDRESSES)):
            self._ip(host, "neigh", "flush", "dev", "tw0", "nud", "all")

    def sent(self, host: int) -> int:
        """The bytes that have left a host through the cable."""
        (device,) = json.loads(self._ip(host, "-json", "-stats", "link", "show", "dev", "tw0"))
        sent: int = device["stats64"]["tx"]["bytes"]
        return sent

    def _ip(self, host: int, *words: str) -> str:
        return run("nsenter", self.files[host], "ip", *words)


@contextlib.contextmanager
def two_networks() -> Iterator[Networks]:
    if os.geteuid() != 0:
        raise NoNetworksError("two network namespaces with a cable between them need root")
    with contextlib.ExitStack() as stack:
        holders = []
        for _ in ADDRESSES:
            command = ["unshare", "--net", "sh", "-c", "echo ready; exec sleep 3600"]
            try:
                holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            except FileNotFoundError as error:
                raise NoNetworksError(str(error)) from None
            stack.enter_context(holder)
            stack.callback(holder.kill)
            assert holder.stdout is not None
            if holder.stdout.readline() != "ready\n":
                raise NoNetworksError("no network namespaces here")
            holders.append(holder)
        pids = [str(holder.pid) for holder in holders]
        try:
            run(
                *("ip", "link", "add", "tw0", "netns", pids[0]),
                *("type", "veth", "peer", "name", "tw0", "netns", pids[1]),
            )
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            raise NoNetworksError(f"no cable between network namespaces: {error}") from None
        files = [f"--net=/proc/{pid}/ns/net" for pid in pids]
        for file, address in zip(files, ADDRESSES, strict=True):
            run("nsenter", file, "ip", "address", "add", f"{address}/24", "dev", "tw0")
            for device in ("lo", "tw0"):
                run("nsenter", file, "ip", "link", "set", device, "up")
        yield Networks(files)


@dataclass
class Ranks:
    """``folder``: where all of them may look."""

    processes: list[subprocess.Popen[bytes]]
    folder: Path

    def line(self, rank: int) -> str:
        """What the rank says next; empty where it has ended. Raises TimeoutError."""
        out = self.processes[rank].stdout
        assert out is not None
        if not select.select([out], [], [], LINE_SECONDS)[0]:
            raise TimeoutError(f"rank {rank} has said nothing for {LINE_SECONDS:.0f} s")
        return out.readline().decode()

    def say(self, rank: int, line: str) -> None:
        into = self.processes[rank].stdin
        assert into is not None
        into.write(f"{line}\n".encode())


@contextlib.contextmanager
def ranks_of(networks: Networks, program: str, **settings: str) -> Iterator[Ranks]:
    """Two of each host, with the folder and their rank as arguments."""
    with contextlib.ExitStack() as stack:
        # Its name leaves room for the address of a socket.
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tw", dir="/tmp")))
        sockets = [top / "first", top / "second"]
        common = top / "common"
        for folder in (*sockets, common):
            folder.mkdir(mode=0o700)
        processes = []
        for rank in range(RANKS):
            host = rank // RANKS_OF_A_HOST
            hide = 'mount -t tmpfs none "$0" && exec "$@"'
            process = subprocess.Popen(
                [
                    *("nsenter", networks.files[host], "unshare", "--mount"),
                    *("sh", "-c", hide, str(sockets[1 - host])),
                    *(sys.executable, "-c", program, str(common), str(rank)),
                ],
                cwd=ROOT,
                env={
                    **os.environ,
                    "TENSORWIRE_RUNTIME_DIR": str(sockets[host]),
                    "TENSORWIRE_GROUP_HOST": ADDRESSES[host],
                    **settings,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,  # else a line could wait where nobody sees it
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        yield Ranks(processes, common)
