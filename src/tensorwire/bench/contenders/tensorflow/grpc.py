# SPDX-License-Identifier: Apache-2.0
"""Stock TensorFlow, the baseline: its servers speak gRPC."""

from __future__ import annotations

from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.tensorflow.contender import Contender, Counts, Taken


class Grpc(Contender):
    transports = ("grpc",)

    def viable(self, transport: str) -> str | None:
        return None

    def protocol(self, transport: str) -> str:
        return "grpc"

    def taken(self, work: Work, transport: str, steps: int, counts: Counts) -> Taken:
        return Taken(transport)
