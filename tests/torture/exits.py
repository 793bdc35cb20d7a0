# SPDX-License-Identifier: Apache-2.0
"""The ways in which a process can end while it uses Tensorwire, each many times.

The ways themselves are those of the RPC package's own test; here they get a larger count.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import Final

from tests.torture.figures import Row, Say, scaled, tormented

EXITS: Final = 100
"""Of each way over each of two transports: 200 of each way."""
_SECONDS: Final = 2400
_SAID: Final = re.compile(r"(.+), (shm|tcp): (\d+) of (\d+) went wrong")


def run(scale: float, seed: int, say: Say) -> list[Row]:
    """A row for each transport."""
    rows = {name: Row(f"exits · {name}") for name in ("shm", "tcp")}
    command = [sys.executable, "-m", "tests.rpc.exits", str(scaled(EXITS, scale, 2))]
    with tormented("exits", say) as all_of_them:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                _read(process, rows, say)
            finally:
                process.kill()
        if process.returncode or not rows["shm"].attempts:
            all_of_them.fail(f"{' '.join(command[1:])} has ended with {process.returncode}")
    rows["shm"].failed += all_of_them.failed
    rows["shm"].failures += all_of_them.failures
    for row in rows.values():
        row.seconds = all_of_them.seconds / 2
    return list(rows.values())


def _read(process: subprocess.Popen[str], rows: dict[str, Row], say: Say) -> None:
    assert process.stdout is not None
    end = time.monotonic() + _SECONDS
    for line in process.stdout:
        found = _SAID.match(line)
        if found is None:
            continue
        way, transport, wrong, count = found.groups()
        rows[transport].attempts += int(count)
        if int(wrong):
            rows[transport].fail(f"{way}: {wrong} of {count} went wrong", int(wrong))
        say(line.strip())
        if time.monotonic() > end:
            raise TimeoutError(f"the exits took longer than {_SECONDS} s")
    process.wait(60)
