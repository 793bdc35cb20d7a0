# SPDX-License-Identifier: Apache-2.0
"""Ends process groups once this process is gone, however it went."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

# Hears of a group with its number, and with its negative before that may be another's. What it has
# heard from is at its end when the launcher is.
GUARD = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    group = int(line)
    if group > 0:
        groups.add(group)
    else:
        groups.discard(-group)
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class Guard:
    """A process that outlives this one just so long as it takes to kill what it watches. Should it
    be killed itself, nothing is watched any more."""

    def __init__(self) -> None:
        # A session of its own: who kills this process's group must not reach it, nor Ctrl-C.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        self._tell(group)

    def forget(self, group: int) -> None:
        """To be called while the number is taken: until the group's leader is reaped."""
        self._tell(-group)

    def close(self) -> None:
        """Watches nothing any more, and kills nothing."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _tell(self, number: int) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has been killed
            self._process.stdin.write(b"%d\n" % number)
