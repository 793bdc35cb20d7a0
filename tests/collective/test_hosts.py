# SPDX-License-Identifier: Apache-2.0
"""Groups between hosts: how ranks reach each other, and what ends a group, and what does not."""

from __future__ import annotations

import json
import signal
import time

import pytest
from tests.networks import (
    LIMIT_SECONDS,
    RANKS,
    Networks,
    ranks_of,
)

RANK = """
import json, sys
from pathlib import Path
import numpy as np
from tensorwire.collective import RankLostError, join, regroup

common, rank = Path(sys.argv[1]), int(sys.argv[2])
with join(str(common / "store"), rank, 4, timeout=60) as group:
    array = np.arange(300_000, dtype=np.float32) % 97 + rank
    total = group.all_reduce(array.copy())
    same = bool((total == np.arange(300_000) % 97 * 4 + 6).all())
    rows = group.all_gather(np.full(70_000, rank))
    same = same and bool((rows == np.arange(4)[:, None]).all())
    sums = group.reduce_scatter(np.repeat(np.arange(4), 70_000).reshape(4, -1) + rank)
    same = same and bool((sums == 4 * rank + 6).all())
    average = group.all_reduce(np.full(3, rank + 1.0), "average")
    same = same and bool((average == 2.5).all())
    group.barrier()
    print(json.dumps([group.fabric, same]), flush=True)
    told = (common / "tell").exists
    try:
        for at in range(2):
            # All ranks leave the loop at once.
            while at or group.all_reduce(np.full(300_000, told()), "max").max() == 0:
                group.all_reduce(array, "max")
            print("it goes on", flush=True)
    except RankLostError as error:
        print(error, flush=True)
        if sys.stdin.readline() == "regroup\\n":
            with regroup(group) as left:
                print(json.dumps([left.rank, left.all_reduce(np.ones(3)).tolist()]), flush=True)
"""

SHARES = """
import json, sys
from pathlib import Path
import numpy as np
from tensorwire.collective import join

common, rank = Path(sys.argv[1]), int(sys.argv[2])
with join(str(common / "store"), rank, 4, timeout=60) as group:
    shares = np.zeros((4, 1 << 20), np.float32)
    for operation in iter(lambda: sys.stdin.readline().strip(), ""):
        getattr(group, operation)(shares if operation == "reduce_scatter" else shares[rank])
        print(json.dumps(list(group.statistics()[operation])), flush=True)
"""


def test_memory_within_a_host_and_messages_between(networks: Networks) -> None:
    with ranks_of(networks, RANK) as ranks:
        for rank in range(RANKS):
            assert json.loads(ranks.line(rank)) == ["shared memory and messages", True]
        # The one that speaks for its host.
        ranks.processes[2].send_signal(signal.SIGKILL)
        for rank in (0, 1, 3):
            assert "rank 2" in ranks.line(rank)
            ranks.say(rank, "regroup")
        for place, rank in enumerate((0, 1, 3)):
            assert json.loads(ranks.line(rank)) == [place, [3.0] * 3]
            assert ranks.processes[rank].wait(LIMIT_SECONDS) == 0


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_what_a_host_has_for_the_other_one_crosses_the_cable_once(
    networks: Networks, operation: str
) -> None:
    once = 2 * (4 << 20)  # two shares
    with ranks_of(networks, SHARES) as ranks:
        for first in (True, False):
            before = [networks.sent(host) for host in range(2)]
            for rank in range(RANKS):
                ranks.say(rank, operation)
            for rank in range(RANKS):
                assert json.loads(ranks.line(rank)) == ["two_levels"]
            for host in range(2):
                sent = networks.sent(host) - before[host]
                # Before the first operation ranks still join. What is more are headers, and what
                # is sent again where a queue was full.
                assert once <= sent < once * 1.25 or (first and sent >= once)
        for rank in range(RANKS):
            ranks.say(rank, "")


def test_a_rank_that_is_stopped_is_waited_for_and_a_host_that_is_cut_off_is_not(
    networks: Networks,
) -> None:
    for host in range(2):
        # What one end sends fills the buffers of both.
        for setting in ("tcp_rmem", "tcp_wmem"):
            networks.set(host, f"ipv4/{setting}", "4096 65536 131072")
    with ranks_of(networks, RANK) as ranks:
        for rank in range(RANKS):
            assert json.loads(ranks.line(rank)) == ["shared memory and messages", True]
        ranks.processes[2].send_signal(signal.SIGSTOP)
        time.sleep(3)  # what a host may be silent, and much more
        ranks.processes[2].send_signal(signal.SIGCONT)
        (ranks.folder / "tell").touch()
        for rank in range(RANKS):
            assert ranks.line(rank) == "it goes on\n"

        networks.cut()
        for rank in range(RANKS):
            others = (2, 3) if rank < 2 else (0, 1)
            error = ranks.line(rank)
            assert any(f"rank {other} (" in error for other in others), error
        # One half goes on. The other half would reach the store, too, as it is a folder.
        for rank in range(RANKS):
            ranks.say(rank, "regroup" if rank < 2 else "leave")
        for rank in range(2):
            assert json.loads(ranks.line(rank)) == [rank, [2.0] * 3]
        for process in ranks.processes:
            assert process.wait(LIMIT_SECONDS) == 0
