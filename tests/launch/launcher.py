# SPDX-License-Identifier: Apache-2.0
"""A launcher in a process of its own, and what its tasks do."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE = 30.0

LAUNCHER = """
import sys
from tensorwire import launch
sys.exit(launch.run(launch.cluster("worker=2"), ["sh", "-c", sys.argv[1]], timeout=60).code)
"""


def launcher(script: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", LAUNCHER, script]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, **options)


def wait_for(path: Path) -> str:
    """The text of a file that another process will write, up to its newline."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text.strip()
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")


def gone(pid: int) -> bool:
    """Whether a process ends within the time that a test has."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False
