# SPDX-License-Identifier: Apache-2.0
"""Ranks that run a program, each a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import forked

from tensorwire import launch

HERE = Path(__file__).parent
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


def of_file(name: str, size: int = 2) -> list[Any]:
    """What each rank prints that runs a file beside this one. One may end by SIGKILL."""
    processes = [
        subprocess.Popen(
            [sys.executable, HERE / name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        for environment in _environments(size, {})
    ]
    try:
        found = [process.communicate(timeout=LIMIT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, found, strict=True):
        assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    return [json.loads(out) for out, _ in found]


def results(program: str, size: int = 2, **environment: str) -> list[Any]:
    """What a function of `PROGRAMS` returns on each rank; None for one that is killed."""
    ranks = [forked.start(PROGRAMS, program, each) for each in _environments(size, environment)]
    try:
        found = [_outcome(rank, child) for rank, child in enumerate(ranks)]
        for child in ranks:  # what it writes at its end counts, too
            child.wait(LIMIT_SECONDS)
        return found
    finally:
        for child in ranks:
            child.kill()


def _outcome(rank: int, child: forked.Child) -> Any:
    line = child.stdout.readline()
    if not line:
        return None
    good, result = json.loads(line)
    assert good, f"rank {rank}: {result}"
    return result
