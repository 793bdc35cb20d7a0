# SPDX-License-Identifier: Apache-2.0
"""Ranks that run a program, each a process."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

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
    """What each rank prints that runs a file beside this one."""
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
        assert process.returncode == 0, errors.decode()
    return [json.loads(out) for out, _ in found]


def _run(end: Connection, program: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    try:
        outcome = (True, import_module(PROGRAMS).run(program))
    except BaseException:
        outcome = (False, traceback.format_exc())
    end.send(outcome)


def results(program: str, size: int = 2, **environment: str) -> list[Any]:
    """What a function of `PROGRAMS` returns on each rank; None for one that is killed. Ranks are
    forked from a process that has imported PyTorch and has no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PROGRAMS])
    ends: list[Connection] = []
    processes = []
    try:
        for each in _environments(size, environment):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(theirs, program, each), daemon=True)
            process.start()
            theirs.close()
            ends.append(mine)
            processes.append(process)
        found = [_outcome(rank, end) for rank, end in enumerate(ends)]
        for process in processes:  # what it writes at its end counts, too
            process.join(LIMIT_SECONDS)
        return found
    finally:
        for process in processes:
            process.kill()
            process.join()
        for end in ends:
            end.close()


def _outcome(rank: int, end: Connection) -> Any:
    assert end.poll(LIMIT_SECONDS), f"rank {rank} has not ended"
    try:
        good, result = end.recv()
    except EOFError:
        return None
    assert good, f"rank {rank}: {result}"
    return json.loads(result)
