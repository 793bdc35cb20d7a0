# SPDX-License-Identifier: Apache-2.0
"""Who takes part in ``tensorwire bench torch``, in what, and how the figures look."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final

from tensorwire.bench.harness.processes import started
from tensorwire.bench.harness.report import (
    CONTENDER,
    NOTE,
    PATH,
    Layout,
    duration,
    figure,
    share,
    significant,
)
from tensorwire.bench.harness.rows import Report, Row
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.suite import Results, Session, Suite, SuiteError
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.channels.compute import ONE_CORE
from tensorwire.bench.suites.collectives.ranks import Ranks
from tensorwire.bench.suites.collectives.torch_ranks import why_no_torch
from tensorwire.bench.suites.torch.contender import Contender, find
from tensorwire.bench.suites.torch.training import rows_within, whole

OWN: Final = "tensorwire"
LIMIT: Final = "nothing"


def _of_limit(report: Report) -> Callable[[Any], float | None]:
    found = dict(zip(map(id, report.rows), report.details["rows"], strict=True))
    return lambda row: found[id(row)]["of_limit"]


LAYOUT: Final = Layout(
    title=lambda report: (
        f"tensorwire bench torch: {report.details['ranks']} ranks, "
        f"{report.details['compute']:g} s of computing"
    ),
    columns=(
        CONTENDER,
        PATH,
        figure("step", lambda row: row.p50_us, duration),
        figure("spread", lambda row: row.p50_spread, share, leaves=6),
        figure("p99", lambda row: row.p99_us, duration, leaves=2),
        figure("CPU", lambda row: row.cpu_s_per_call, lambda seconds: duration(seconds * 1e6), 1),
        figure("x gloo", lambda row: row.ratio, significant),
    ),
    more=lambda report: [figure("of limit", _of_limit(report), share), NOTE],
    legend=(
        "step: the median over the rounds of each round's median step, on the rank for which it "
        "took longest: forward, backward, optimizer. spread: of the rounds' medians, largest less "
        "smallest. The size is that of the gradients.",
        "CPU: time of processors for one step, of all ranks and all their threads.",
        "x gloo: how many times faster than gloo, in the same rounds. of limit: the step of as "
        "many ranks that train a model each (nothing), as a part of this one.",
    ),
)


@dataclass(frozen=True)
class Options:
    """cases: ways to train; sizes: bytes of gradients; compute: seconds of a core that a step of
    one process takes; peers: beside ours, of which those in ``may_lack`` need not be installed;
    seconds: of one visit."""

    cases: Sequence[str]
    sizes: Sequence[int]
    ranks: int
    compute: float
    peers: Sequence[str]
    rounds: int
    seconds: float
    may_lack: Sequence[str] = ()


@dataclass
class Trainings(Suite):
    """Each entry is a group of ranks, each in a process of its own."""

    name = "torch"
    baseline = Entry("gloo", "tcp")
    layout: ClassVar[Layout] = LAYOUT
    start_seconds = 6.0
    visit_overhead = 2.0

    ranks: int = 2
    compute: float = 0.0
    rows: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Options) -> Trainings:
        """Raises ValueError for a peer that does not exist."""
        names = dict.fromkeys((*options.peers, OWN, LIMIT))
        sizes = dict.fromkeys(map(whole, options.sizes))
        return cls(
            [Entry(name, way) for name in names for way in find(name).transports],
            [Work(case, size) for case in options.cases for size in sizes],
            options.rounds,
            options.seconds,
            asdict(options),
            options.may_lack,
            options.ranks,
            options.compute,
        )

    def contender(self, name: str) -> Contender:
        return find(name)

    def prepare(self) -> Mapping[str, str]:
        if (reason := why_no_torch()) is not None:
            raise SuiteError(reason)
        self.rows = {size: rows_within(size, self.compute) for size in self._sizes()}
        return {}

    def _sizes(self) -> list[int]:
        return list(dict.fromkeys(work.size for work in self.works))

    def start(self, entry: Entry) -> AbstractContextManager[Session]:
        return start(entry, self.ranks, self.rows)

    def details(self, results: Results, found: Sequence[Row]) -> dict[str, Any]:
        limits = {(row.case, row.size): row.p50_us for row in found if row.contender == LIMIT}
        return {
            "ranks": self.ranks,
            "compute": self.compute,
            "inputs": {str(size): rows for size, rows in self.rows.items()},
            "rows": [_details_of(row, limits.get((row.case, row.size))) for row in found],
        }


def _details_of(row: Row, limit: float | None) -> dict[str, Any]:
    return {
        "contender": row.contender,
        "case": row.case,
        "size": row.size,
        "of_limit": limit / row.p50_us if limit and row.p50_us else None,
    }


@contextmanager
def start(entry: Entry, size: int, rows: Mapping[int, int]) -> Iterator[Ranks]:
    """Starts the ranks of a training and ends them, whatever state they are in."""
    agent = [
        *("env", *(f"{name}={value}" for name, value in ONE_CORE.items())),
        *(sys.executable, "-m", "tensorwire.bench.suites.torch.agent"),
        *(entry.contender, entry.transport),
    ]

    def commands(path: str) -> list[list[str]]:
        more = (str(size), json.dumps(dict(rows)), path)
        return [[*agent, str(rank), *more] for rank in range(size)]

    with started(commands, size) as hellos:
        yield Ranks([control for control, _ in hellos], [hello for _, hello in hellos])
