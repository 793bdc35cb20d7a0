# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench mimic``."""

from __future__ import annotations

from tensorwire.cli.bench import Commands
from tensorwire.cli.bench.tf_grpc import benchmark

app = benchmark(
    "mimic",
    Commands.summaries["mimic"],
    "Each node is a server and a worker at once, in one process. It calls all others, one after "
    "the other, and they send the payload back. Payloads are 2, 4 and 8 large buffers unless "
    "options say otherwise.",
    "--servers 4 --seconds 1 --warm-up 0.2",
    "--servers 3 --scheme skew --categories small,medium,large --buffers 10",
)
