# SPDX-License-Identifier: Apache-2.0
"""A program that exposes a burst of regions, and has a user's limits of descriptors, also as root.

It says how many of them its peer maps, and how many it does not."""

from __future__ import annotations

import ctypes
import os
import resource
from typing import Any

from tests.remote.pairs import pair
from tests.weights.other import eventually

from tensorwire import _core
from tensorwire.remote.shared import shared

_CAPSET = {"x86_64": 126, "aarch64": 91}
_VERSION = 0x20080522
_SPARE = 40
"""Descriptors beside those that are open."""


def main(argument: Any) -> None:
    header, none = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).syscall(_CAPSET[os.uname().machine], header, none) == 0
    with pair("shm") as there:
        (native,) = there.host._peers
        memory = shared(64)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limit = len(os.listdir("/proc/self/fd")) + _SPARE
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))

        def known() -> tuple[int, int]:
            link: Any = there.device.stats()["link"]
            return link["remote_regions_mapped"], link["remote_regions_unmapped"]

        before = sum(known())
        regions = [native.expose(memory, _core.MAY_READ) for _ in range(argument)]
        eventually(lambda: sum(known()) == before + len(regions))
        mapped, unmapped = known()
        print(mapped - before, flush=True)
        print(unmapped, flush=True)
