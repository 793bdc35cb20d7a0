# SPDX-License-Identifier: Apache-2.0
"""Thresholds that calls find while a program runs: TENSORWIRE_TUNE_ONLINE."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.rpc.pairings import ROOT, process

KB = 1 << 10
TABLE = f"shm same_host coalesce_bytes {KB}\nshm same_host eager_bytes {256 * KB}\n"
"""Far too much is copied along. That would be found out for half as much first."""

CLIENT = """
import json
import sys

from tests.rpc.service import path

import tensorwire

SIZE = 200_000


def channel(n, *options):
    return tensorwire.insecure_channel(sys.argv[1], [("n", n), *options], transport="shm")


def told(channel):
    link = channel.stats()["link"]
    assert channel.path().thresholds == link["thresholds"]
    names = ("trials", "threshold_moves")
    return {"eager": link["thresholds"]["eager_bytes"], **{name: link[name] for name in names}}


def calls(channel, count, nbytes=SIZE):
    echo = channel.unary_unary(path("echo"))
    for i in range(count):
        request = bytes([i % 251]) * nbytes
        assert echo(request, timeout=60) == request
    return told(channel)


found = []
with channel(1) as first, channel(2) as second, channel(3, *OPTIONS) as given:
    found.append(calls(first, 50, 8))
    found.append(calls(first, 112))
    found.append(calls(first, 2048))
    found.append(calls(second, 32))
    found.append(calls(given, 32))
print(json.dumps(found))
"""


def found(table: Path, options: str = "()", **settings: str) -> list[dict[str, Any]]:
    """What links of a client tell, after calls to a server in another process."""
    table.write_text(TABLE)
    environment = {
        **os.environ,
        "TENSORWIRE_TUNE_ONLINE": "on",
        "TENSORWIRE_LINK_TUNING": str(table),
        **settings,
    }
    with process(kind="tensorwire") as (target, _):
        done = subprocess.run(
            [sys.executable, "-c", CLIENT.replace("OPTIONS", options), target],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    told: list[dict[str, Any]] = json.loads(done.stdout)
    return told


def test_calls_close_to_a_threshold_try_the_other_way(tmp_path: Path) -> None:
    options = f'[("tensorwire.eager_bytes", {256 * KB})]'
    small, some, all_of_them, later, given = found(tmp_path / "links.table", options)
    assert small == {"eager": [256 * KB, "table"], "trials": 0, "threshold_moves": 0}
    # Two of 16, and no verdict yet.
    assert some == {"eager": [256 * KB, "table"], "trials": 14, "threshold_moves": 0}
    if all_of_them["threshold_moves"]:
        assert all_of_them["eager"] == [128 * KB, "online"]
    else:
        assert all_of_them["eager"] == [256 * KB, "table"]
    assert 16 <= all_of_them["trials"] <= 2 * 128
    # It is found out for the host, and for once.
    assert later == {"eager": all_of_them["eager"], "trials": 0, "threshold_moves": 0}
    assert given == {"eager": [256 * KB, "argument"], "trials": 0, "threshold_moves": 0}


def test_what_the_environment_says_is_kept(tmp_path: Path) -> None:
    kept = found(tmp_path / "links.table", TENSORWIRE_EAGER_BYTES="256K")
    assert kept == [{"eager": [256 * KB, "environment"], "trials": 0, "threshold_moves": 0}] * 5
