# SPDX-License-Identifier: Apache-2.0
"""Ranks of a group, each a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tensorwire.collective import join

LIMIT_SECONDS = 60.0
_CONTEXT = multiprocessing.get_context("spawn")


def _run(
    program: Callable[..., Any],
    folder: str,
    rank: int,
    size: int,
    host: str,
    end: Connection,
    more: Any,
) -> None:
    if host:
        os.environ["TENSORWIRE_HOST_ID"] = host
    try:
        with join(folder, rank, size, timeout=LIMIT_SECONDS) as group:
            result = program(group, *more)
    except BaseException:
        end.send((False, traceback.format_exc()))
        raise
    end.send((True, result))


class Ranks:
    """The processes, and what their programs return. ``on_a_host``: how many of them share one; 0:
    all."""

    def __init__(
        self,
        program: Callable[..., Any],
        folder: Path,
        size: int,
        *more: Any,
        on_a_host: int = 0,
    ) -> None:
        self.processes = []
        self._ends = []
        for rank in range(size):
            mine, theirs = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(
                target=_run,
                args=(
                    program,
                    str(folder),
                    rank,
                    size,
                    str(rank // on_a_host) if on_a_host else "",
                    theirs,
                    more,
                ),
                daemon=True,
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self._ends.append(mine)

    def result(self, rank: int) -> Any:
        assert self._ends[rank].poll(LIMIT_SECONDS), f"rank {rank} has not ended"
        good, result = self._ends[rank].recv()
        assert good, result
        return result

    def results(self) -> list[Any]:
        return [self.result(rank) for rank in range(len(self.processes))]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


@contextmanager
def ranks(
    program: Callable[..., Any], folder: Path, size: int, *more: Any, on_a_host: int = 0
) -> Iterator[Ranks]:
    """``program(group, *more)`` by each of so many ranks; a function of a module."""
    running = Ranks(program, folder / "store", size, *more, on_a_host=on_a_host)
    try:
        yield running
    finally:
        running.close()


def results(
    program: Callable[..., Any], folder: Path, size: int, *more: Any, on_a_host: int = 0
) -> list[Any]:
    """What ``program`` returns, by rank."""
    with ranks(program, folder, size, *more, on_a_host=on_a_host) as running:
        return running.results()


def on_a_host(fabric: str) -> int:
    """So many ranks of a test share a host, to move data by this; 0: all."""
    return 2 if "and" in fabric else 0
