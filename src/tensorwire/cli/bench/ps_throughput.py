# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench ps-throughput``."""

from __future__ import annotations

from tensorwire.cli.bench import Commands
from tensorwire.cli.bench.tf_grpc import benchmark

app = benchmark(
    "ps-throughput",
    Commands.summaries["ps-throughput"],
    "Each worker calls each parameter server, one after the other, with the payload, which the "
    "server acknowledges with 8 bytes.",
    "--servers 2 --workers 3 --scheme uniform,random,skew --seconds 1 --warm-up 0.2",
    "--servers 2 --workers 2 --payload model:resnet50",
)
