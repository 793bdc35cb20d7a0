# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench p2p-latency``."""

from __future__ import annotations

from tensorwire.cli.bench import Commands
from tensorwire.cli.bench.tf_grpc import benchmark

app = benchmark(
    "p2p-latency",
    Commands.summaries["p2p-latency"],
    "The round trip of a call whose payload the parameter server sends back. Several workers: "
    "worker i calls server i, counted around.",
    "--scheme uniform,random,skew --seconds 1 --warm-up 0.2",
    "--categories large --buffers 2,4,6,8,10",
)
