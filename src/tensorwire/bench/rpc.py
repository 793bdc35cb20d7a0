"""``tensorwire bench rpc``: one run from its options to its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tensorwire.bench import environment, runner
from tensorwire.bench.work import plan

LIMITS = ("sockets", "memcpy")


@dataclass(frozen=True)
class Options:
    """transports: Tensorwire's; sizes: in bytes; peers: beside grpcio; seconds: of one visit;
    payloads: what the programs have (see ``Work``)."""

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


def run(
    options: Options, progress: runner.Progress = lambda now, done, total: None
) -> tuple[dict[str, Any], bool]:
    """The report, ``{"environment": {...}, "rows": [...]}``, and whether all that was asked for is
    in it: a contender that is not installed may be missing, one that failed may not.

    Raises ValueError for a peer that does not exist.
    """
    before = environment.describe(asdict(options), ())
    asked = runner.contenders(options.transports, options.peers)
    works = plan(
        options.sizes,
        options.cases,
        options.origins,
        options.reads,
        options.callers,
        options.payloads,
    )
    results = runner.run(asked, works, options.rounds, options.seconds, progress)
    rows = runner.rows(results)
    notes = [*results.notes, *environment.caveats({row["transport"] for row in rows})]
    described = {**before, "notes": notes, "interrupted": results.interrupted}
    report = {"environment": described, "rows": rows}
    return report, not results.failed
