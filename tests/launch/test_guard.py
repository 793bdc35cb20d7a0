# SPDX-License-Identifier: Apache-2.0
"""What a guard kills, and what not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.launch.launcher import PATIENCE

from tensorwire import launch
from tensorwire.launch import processes
from tensorwire.launch.guard import Guard


@pytest.fixture
def groups() -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(2)]
    yield started
    for process in started:
        process.kill()
        process.wait(PATIENCE)


def test_what_is_watched_is_killed_at_the_end_and_what_is_forgotten_is_not(
    groups: list[subprocess.Popen[bytes]],
) -> None:
    watched, forgotten = groups
    guard = Guard()
    guard.watch(forgotten.pid)
    guard.watch(watched.pid)
    guard.forget(forgotten.pid)
    assert guard._process.stdin is not None
    guard._process.stdin.close()  # as it is when this process is gone
    assert guard._process.wait(PATIENCE) == 0
    assert watched.wait(PATIENCE) == -signal.SIGKILL
    assert forgotten.poll() is None


def test_closed_it_kills_nothing_and_is_gone(groups: list[subprocess.Popen[bytes]]) -> None:
    guard = Guard()
    guard.watch(groups[0].pid)
    guard.close()
    assert guard._process.returncode == -signal.SIGKILL
    assert groups[0].poll() is None


def test_a_run_goes_on_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    guards: list[Guard] = []

    class Killed(Guard):
        def __init__(self) -> None:
            super().__init__()
            guards.append(self)
            self._process.kill()
            self._process.wait(PATIENCE)

    monkeypatch.setattr(processes, "Guard", Killed)
    assert launch.run(launch.cluster("w=2"), ["true"], timeout=PATIENCE).code == 0
    assert len(guards) == 1


def test_a_task_is_no_relative_of_the_guard() -> None:
    """It waits for all of its children, and has none; its group is its own."""
    script = """
import os, sys
try:
    os.wait()
except ChildProcessError:
    sys.exit(os.getpgrp() != os.getpid() or os.getppid() != int(sys.argv[1]))
sys.exit(1)
"""
    command = [sys.executable, "-c", script, str(os.getpid())]
    assert launch.run(launch.cluster("w=1"), command, timeout=PATIENCE).code == 0
