# SPDX-License-Identifier: Apache-2.0
"""Ranks that run a program, each a process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests import forked

from tensorwire import launch

PROGRAMS = "tests.horovod.programs"
LIMIT_SECONDS = 100.0


def _environments(size: int, more: dict[str, str]) -> list[dict[str, str]]:
    """What a launcher tells each rank."""
    port = launch.free_ports(1)[0]
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            **more,
        }
        for rank in range(size)
    ]


def results(program: str, size: int = 2, module: str = PROGRAMS, **environment: str) -> list[Any]:
    """What a function of a module returns on each rank; None for one that is killed."""
    ranks = [forked.start(module, program, each) for each in _environments(size, environment)]
    try:
        found = [_outcome(rank, child) for rank, child in enumerate(ranks)]
        for child in ranks:  # what it writes at its end counts, too
            child.wait(LIMIT_SECONDS)
        return found
    finally:
        for child in ranks:
            child.kill()


def bits(folder: Path, module: str = PROGRAMS) -> list[Any]:
    """Of sums by three ranks over TCP: without a table, with one that says otherwise, and both
    again as TENSORWIRE_DETERMINISTIC=on makes them."""
    table = folder / "table"
    table.write_text("all_reduce tcp 3 281474976710656 ring\n")
    settings = [("off", "off"), ("off", str(table)), ("on", "off"), ("on", str(table))]
    more = {"TENSORWIRE_TRANSPORT": "tcp", "BITS": json.dumps(settings)}
    first, *others = results("bits", 3, module, **more)
    assert others == [first] * 2
    found: list[Any] = first
    return found


def _outcome(rank: int, child: forked.Child) -> Any:
    line = child.stdout.readline()
    if not line:
        return None
    good, result = json.loads(line)
    assert good, f"rank {rank}: {result}"
    return result
