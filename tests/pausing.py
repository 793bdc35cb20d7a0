# SPDX-License-Identifier: Apache-2.0
"""Processes that are stopped for a while."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LIMIT_SECONDS: Final = 30


def _stands_still(pid: int) -> bool:
    """Whether each thread does (proc(5): the state comes after the name, which is in brackets)."""
    try:
        states = [
            each.read_text().rpartition(")")[2] for each in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
    except (FileNotFoundError, ProcessLookupError):  # a thread that ends has not stopped
        return False
    return all(state.split()[0] in "Tt" for state in states)


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """The body runs when each thread of the process stands still: the signal takes a while, in
    which the process may still answer. A parent is no part of it, so that any process will do."""
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not _stands_still(pid):
            assert time.monotonic() < deadline, f"process {pid} has not stopped"
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
