# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench p2p-bandwidth``."""

from __future__ import annotations

from tensorwire.cli.bench import Commands
from tensorwire.cli.bench.tf_grpc import benchmark

app = benchmark(
    "p2p-bandwidth",
    Commands.summaries["p2p-bandwidth"],
    "Calls with the payload, which the parameter server acknowledges with 8 bytes. Several "
    "workers: worker i calls server i, counted around.",
    "--scheme skew --bias medium --seconds 1 --warm-up 0.2",
    "--window 16 --both-ways --seconds 1 --warm-up 0.2",
    "--serve --ip 0.0.0.0 --token-file token",
    "--connect 10.0.0.2 --token-file token --transport tcp",
)
