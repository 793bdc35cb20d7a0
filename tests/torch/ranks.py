# SPDX-License-Identifier: Apache-2.0
"""Ranks of a PyTorch job, each a process of its own, that stay for one program after the other:
they import PyTorch once."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 40.0
_CONTEXT = multiprocessing.get_context("spawn")


def loads_back_ends() -> bool:
    """Whether this PyTorch finds back ends of other packages at its import, as 2.5 and newer do."""
    import torch

    return hasattr(torch, "_import_device_backends")


def _serve(end: Connection, rank: int, size: int) -> None:
    import torch.distributed as dist

    import torch

    torch.set_num_threads(1)
    if not loads_back_ends():
        import tensorwire.torch  # noqa: F401
    while (job := end.recv()) is not None:
        program, backend, transport, file, more = job
        os.environ["TENSORWIRE_TRANSPORT"] = transport  # read when a group is made
        try:
            dist.init_process_group(
                backend,
                init_method=f"file://{file}",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=LIMIT_SECONDS / 2),
            )
            try:
                result = program(rank, size, *more)
            finally:
                dist.destroy_process_group()
        except BaseException:
            end.send((False, traceback.format_exc()))
        else:
            end.send((True, result))


class Ranks:
    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._count = 0
        self.processes = []
        self._ends = []
        for rank in range(size):
            mine, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_serve, args=(theirs, rank, size), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self._ends.append(mine)

    def begin(
        self,
        program: Callable[..., Any],
        *more: Any,
        backend: str = "tensorwire",
        transport: str = "auto",
    ) -> None:
        self._count += 1
        file = self._folder / f"store-{self._count}"
        for end in self._ends:
            end.send((program, backend, transport, file, more))

    def _outcome(self, rank: int) -> tuple[bool, Any]:
        if not self._ends[rank].poll(LIMIT_SECONDS):
            return False, f"rank {rank} has not ended"
        outcome: tuple[bool, Any] = self._ends[rank].recv()
        return outcome

    def result(self, rank: int) -> Any:
        good, result = self._outcome(rank)
        assert good, result
        return result

    def results(
        self,
        program: Callable[..., Any],
        *more: Any,
        backend: str = "tensorwire",
        transport: str = "auto",
    ) -> list[Any]:
        """What ``program(rank, size, *more)`` returns, by rank; a function of a module."""
        self.begin(program, *more, backend=backend, transport=transport)
        # All of them first: what is left of one program would be taken for the next one's.
        outcomes = [self._outcome(rank) for rank in range(len(self.processes))]
        failed = [f"rank {rank}: {why}" for rank, (good, why) in enumerate(outcomes) if not good]
        assert not failed, "\n".join(failed)
        return [result for _, result in outcomes]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
