# SPDX-License-Identifier: Apache-2.0
"""Training goes on when a rank is killed, and when it comes back."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.horovod.ranks import results

PROGRAM = Path(__file__).parent / "elastic_program.py"


@pytest.mark.parametrize("size", [1, 2])
def test_a_state_is_committed(size: int) -> None:
    assert results("commit", size) == [3] * size


@pytest.mark.timeout(120)
def test_survivors_go_on_and_others_come() -> None:
    launched = [sys.executable, "-m", "tensorwire", "run", "--launch", "worker=2", "--restarts=1"]
    done = subprocess.run(
        [*launched, "--", sys.executable, PROGRAM], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "worker 1 was ended by SIGKILL; starting it again" in done.stderr
    found = {
        match[1]: json.loads(match[2])
        for match in re.finditer(r"^\[worker (\d)\] +(\[.*)$", done.stdout, re.MULTILINE)
    }
    survivor, newcomer = found["0"], found["1"]
    assert survivor[0] == list(range(24))  # none lost, and none done twice
    assert survivor[1] == [2, 2, 1, 1, 2, 2, 2]
    assert (survivor[2], newcomer[2]) == ([1, 2], [])
    assert survivor[:2] == newcomer[:2]
    assert survivor[3] == newcomer[3]
