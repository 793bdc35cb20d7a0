# SPDX-License-Identifier: Apache-2.0
"""Waiting for what a process does in a folder."""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

ENTRIES_COME: Final = 0x80 | 0x100  # IN_MOVED_TO, IN_CREATE
LIMIT_SECONDS: Final = 60


def wait(
    until: Callable[[], bool], folders: Iterable[Path], process: subprocess.Popen[Any]
) -> None:
    """Waits until that holds, which is asked whenever something new is in one of the folders.
    AssertionError when the process ends before, or nothing comes in a minute."""
    libc = ctypes.CDLL(None, use_errno=True)
    with ExitStack() as stack:
        notices = libc.inotify_init1(os.O_CLOEXEC)
        assert notices >= 0, os.strerror(ctypes.get_errno())
        stack.callback(os.close, notices)
        for folder in folders:
            watch = libc.inotify_add_watch(notices, os.fsencode(folder), ENTRIES_COME)
            assert watch >= 0, os.strerror(ctypes.get_errno())
        death = os.pidfd_open(process.pid)
        stack.callback(os.close, death)
        while not until():
            ready, _, _ = select.select([notices, death], [], [], LIMIT_SECONDS)
            assert ready == [notices], "the process has ended" if ready else "nothing has come"
            os.read(notices, 4096)
