# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a launcher come together for one benchmark, and what they have to agree on."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tensorwire.collective import FileStore
from tensorwire.launch.place import Place

LOOPBACK: Final = "127.0.0.1"
_KEY: Final = "leader"

Command = Callable[[Mapping[str, Any], str, str], list[str]]
"""Of an order, the address of the agent's host, and the path of its bench's unix socket: how an
agent is started. ValueError for one that cannot be."""


class RanksError(Exception):
    """The ranks do not come together. code: that of the command."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class Told(msgspec.Struct, frozen=True):
    """Of a rank that comes: the name of its host, which other ranks share that (``host_id``), and
    the options of its command."""

    name: str
    host: str
    given: dict[str, str]


@dataclass(frozen=True)
class Meeting:
    """place: of this process. secret: that all ranks have; None: they are on one host, and meet in
    a folder of this user's. given: options of the command, which are the same for all."""

    place: Place
    secret: bytes | None
    given: Mapping[str, str]

    def address(self) -> tuple[str, int]:
        host, _, port = self.place.address.rpartition(":")
        return host, int(port)

    def told(self) -> Told:
        """Of this process."""
        return Told(socket.gethostname(), host_id(), dict(self.given))

    @property
    def at(self) -> str:
        """For people."""
        return self.place.folder if self.secret is None else self.place.address

    def publish(self, port: int, secret: bytes) -> None:
        """Where rank 0 listens, for the ranks of its host. Raises OSError."""
        FileStore(self.place.folder).set(_KEY, port.to_bytes(2, "big") + secret)

    def where(self) -> tuple[str, int, bytes]:
        """Where rank 0 listens, and the secret. Raises OSError where that is not told yet."""
        if self.secret is not None:
            return (*self.address(), self.secret)
        found = FileStore(self.place.folder).get(_KEY, 0)
        return LOOPBACK, int.from_bytes(found[:2], "big"), found[2:]


def host_id() -> str:
    """The same for processes that see each other's numbers, and the same network interfaces."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = (os.stat(f"/proc/self/ns/{space}").st_ino for space in ("net", "pid"))
    return "-".join([boot, *map(str, spaces)])
