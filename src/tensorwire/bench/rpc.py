# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench rpc``: one run from its options to its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tensorwire.bench import environment, runner
from tensorwire.bench.course import Forecast, Progress
from tensorwire.bench.work import Work, plan

LIMITS = ("sockets", "memcpy")


@dataclass(frozen=True)
class Options:
    """transports: Tensorwire's; sizes: in bytes; peers: beside grpcio, of which those in
    ``may_lack`` need not be installed; seconds: of one visit; payloads: what the programs have (see
    ``Work``)."""

    transports: Sequence[str]
    sizes: Sequence[int]
    cases: Sequence[str]
    origins: Sequence[str]
    reads: Sequence[bool]
    peers: Sequence[str]
    rounds: int
    seconds: float
    callers: int
    payloads: Sequence[str]
    may_lack: Sequence[str] = ()

    @property
    def contenders(self) -> list[runner.Contender]:
        """Raises ValueError for a peer that does not exist."""
        return runner.contenders(self.transports, self.peers)

    @property
    def works(self) -> list[Work]:
        return plan(self.sizes, self.cases, self.origins, self.reads, self.callers, self.payloads)


def forecast(options: Options) -> Forecast:
    return runner.forecast(options.contenders, options.works, options.rounds, options.seconds)


def run(
    options: Options, progress: Progress = lambda now, done, total: None
) -> tuple[dict[str, Any], bool]:
    """The report, ``{"environment": {...}, "rows": [...]}``, and whether all that was asked for is
    in it.

    Raises ValueError for a peer that does not exist.
    """
    before = environment.describe(asdict(options), ())
    results = runner.run(
        options.contenders,
        options.works,
        options.rounds,
        options.seconds,
        progress,
        may_lack=options.may_lack,
    )
    rows = runner.rows(results)
    notes = [*results.notes, *environment.caveats({row["transport"] for row in rows})]
    described = {**before, "notes": notes, "interrupted": results.interrupted}
    report = {"environment": described, "rows": rows}
    return report, not results.failed
