# SPDX-License-Identifier: Apache-2.0
"""Groups of two hosts, as far as namespaces make them, whose cable is cut while all ranks work, or
wait for something that does not come. No host may take longer than it is promised to be missed."""

from __future__ import annotations

import json
import random
import statistics
import time
from typing import Final

from tests.networks import (
    RANKS,
    RANKS_OF_A_HOST,
    Networks,
    NoNetworksError,
    Ranks,
    ranks_of,
    two_networks,
)
from tests.torture.figures import Row, Say, scaled, tormented

ROUNDS: Final = 20
LIFE_SECONDS: Final = 0.5
END_SECONDS: Final = 5.0
"""Within which ranks have been told, on a machine that other work keeps busy."""
WORK: Final = {"small": 1, "large": 4 << 20, "waiting": 0}
"""Floats that all ranks reduce, again and again."""

RANK: Final = """
import json, sys, time
import numpy as np
from tensorwire.collective import RankLostError, join

common, rank = sys.argv[1], int(sys.argv[2])
for line in sys.stdin:
    store, count = line.split()
    array = np.ones(int(count) or 1, np.float32)
    with join(f"{common}/{store}", rank, 4, timeout=60) as group:
        group.barrier()
        print("joined", flush=True)
        try:
            while count != "0":
                group.all_reduce(array, "max")
            group.receive(array, (rank + 2) % 4)
        except RankLostError as error:
            print(json.dumps([time.monotonic(), str(error)]), flush=True)
"""


def _cut(row: Row, networks: Networks, ranks: Ranks, order: str, rng: random.Random) -> float:
    """Seconds until the last rank was told."""
    row.attempts += 1
    for rank in range(RANKS):
        ranks.say(rank, order)
    for rank in range(RANKS):
        if (said := ranks.line(rank)) != "joined\n":
            raise RuntimeError(f"rank {rank} has not joined: {said}")
    time.sleep(rng.uniform(0, LIFE_SECONDS))
    cut = rng.choice([networks.cut, networks.lose_all])
    began = time.monotonic()
    cut()
    latest = 0.0
    for rank in range(RANKS):
        at, error = json.loads(ranks.line(rank))
        latest = max(latest, at - began)
        here = rank // RANKS_OF_A_HOST
        if not any(f"rank {r} (" in error for r in range(RANKS) if r // RANKS_OF_A_HOST != here):
            row.fail(f"rank {rank} is told: {error}")
    networks.mend()
    if latest > END_SECONDS:
        row.fail(f"a host was missed after {latest:.1f} s")
    return latest


def cut_off(scale: float, seed: int, say: Say) -> list[Row]:
    rng = random.Random(seed)
    rows = []
    for name, count in WORK.items():
        with tormented(f"hosts cut off · {name}", say) as row:
            rows.append(row)
            try:
                with two_networks() as networks, ranks_of(networks, RANK) as ranks:
                    latest = [
                        _cut(row, networks, ranks, f"{at} {count}", rng)
                        for at in range(scaled(ROUNDS, scale))
                    ]
            except NoNetworksError as error:
                row.note = str(error)
                continue
            row.note = (
                f"the last rank told after {statistics.median(latest):.2f} s (median), "
                f"{max(latest):.2f} s (most)"
            )
    return rows
