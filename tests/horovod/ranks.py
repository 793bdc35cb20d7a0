# SPDX-License-Identifier: Apache-2.0
"""Ranks that run a program, each a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tensorwire import launch

HERE = Path(__file__).parent


def results(program: str, *arguments: str, size: int = 2, **environment: str) -> list[Any]:
    """What each rank prints; None for one that is killed."""
    port = launch.free_ports(1)[0]
    processes = [
        subprocess.Popen(
            [sys.executable, HERE / program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
                **environment,
            },
        )
        for rank in range(size)
    ]
    try:
        found = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, found, strict=True):
        assert process.returncode in (0, -9), errors.decode()
    return [json.loads(out) if out else None for out, _ in found]
