# SPDX-License-Identifier: Apache-2.0
"""The limit that computing sets: workers that train a model each, and exchange nothing."""

from __future__ import annotations

from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.tensorflow.contender import Contender, Counts, Taken


class Nothing(Contender):
    role = "limit"
    transports = ("none",)
    alone = True

    def viable(self, transport: str) -> str | None:
        return None

    def protocol(self, transport: str) -> str:
        return "grpc"

    def taken(self, work: Work, transport: str, steps: int, counts: Counts) -> Taken:
        return Taken(transport)
