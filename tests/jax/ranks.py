# SPDX-License-Identifier: Apache-2.0
"""Ranks of a JAX program, each a process of its own, that stay for one function after the other:
they import JAX once."""

from __future__ import annotations

import multiprocessing
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from tensorwire import launch

LIMIT_SECONDS = 50.0
_CONTEXT = multiprocessing.get_context("spawn")


def _serve(end: Connection, rank: int, size: int, port: int) -> None:
    from tensorwire import jax as ours

    ours.enable()
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(f"127.0.0.1:{port}", size, rank)
    while (name := end.recv()) is not None:
        end.send(_outcome(name, rank, size))


def _outcome(name: str, rank: int, size: int) -> tuple[bool, Any]:
    try:
        return True, getattr(import_module("tests.jax.programs"), name)(rank, size)
    except BaseException:
        return False, traceback.format_exc()


class Ranks:
    def __init__(self, size: int) -> None:
        port = launch.free_ports(1)[0]
        self.processes = []
        self._ends = []
        for rank in range(size):
            mine, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_serve, args=(theirs, rank, size, port), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self._ends.append(mine)

    def begin(self, program: str) -> None:
        for end in self._ends:
            end.send(program)

    def result(self, rank: int) -> Any:
        assert self._ends[rank].poll(LIMIT_SECONDS), f"rank {rank} has not ended"
        good, result = self._ends[rank].recv()
        assert good, result
        return result

    def results(self, program: str) -> list[Any]:
        """What a function of programs.py returns, by rank. Its name: the caller imports no JAX."""
        self.begin(program)
        return [self.result(rank) for rank in range(len(self.processes))]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
