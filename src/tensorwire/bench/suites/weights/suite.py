# SPDX-License-Identifier: Apache-2.0
"""Who takes part in ``tensorwire bench weights``, in what, and how the figures look."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

from tensorwire.bench.harness.fresh import FIRST, Fresh, of_steady
from tensorwire.bench.harness.processes import started
from tensorwire.bench.harness.report import (
    CONTENDER,
    NOTE,
    PATH,
    Layout,
    duration,
    figure,
    share,
)
from tensorwire.bench.harness.rows import Report, Row
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.suite import Results, Session, Suite
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.ranks import Ranks
from tensorwire.bench.suites.weights.contender import COPIED, PUBLISHED, RESHARDED, Contender, find
from tensorwire.terminal import Column

TORCH: Final = "tensorwire-torch"
OWN: Final = (
    "tensorwire",
    "tensorwire-tcp",
    "tensorwire-in-place-tcp",
    TORCH,
    "tensorwire-sharded",
    "tensorwire-sharded-tcp",
)
LIMIT: Final = "memcpy"


def _more(report: Report) -> Sequence[Column]:
    """By each contender that copies: what the others have is no other case. Parts of tensors are
    compared with parts, and first versions with first ones."""
    copied = {(row.contender, row.case, row.size): row.p50_us for row in report.rows}

    def ratio(peer: str) -> Callable[[Row], float | None]:
        def of(row: Row) -> float | None:
            case = row.case if row.case in (RESHARDED, FIRST) else COPIED
            base = copied.get((peer, case, row.size))
            return base / row.p50_us if base and row.p50_us else None

        return of

    peers = dict.fromkeys(row.contender for row in report.rows)
    return [
        *(figure(f"x {peer}", ratio(peer)) for peer in peers if peer not in (*OWN, LIMIT)),
        *([figure("of limit", ratio(LIMIT), share, leaves=1)] if LIMIT in peers else []),
        *of_steady(report.rows, COPIED),
        NOTE,
    ]


LAYOUT: Final = Layout(
    title=lambda report: f"tensorwire bench weights: 1 to {report.details['receivers']}",
    columns=(
        CONTENDER,
        PATH,
        figure("p50", lambda row: row.p50_us, duration),
        figure("p99", lambda row: row.p99_us, duration, leaves=2),
        figure("spread", lambda row: row.p50_spread, share, leaves=3),
        figure("CPU", lambda row: row.cpu_s_per_call, lambda seconds: duration(seconds * 1e6), 1),
    ),
    more=_more,
    legend=(
        "From the moment at which the trainer has a version to that at which the last receiver "
        "holds it: copied into its own parameters, or adopted where the trainer has it. published: "
        "copied, from the trainer's call of publish() on. resharded: copied, from trainers with "
        "rows of each tensor to receivers with rows or columns of it, which have all of it "
        "together. first: copied, the first version that new processes move; of steady: how many "
        "times as long that takes as copied. 298 tensors of uint8, which all change.",
        "p50 and p99: the median over the rounds of each round's own quantile. spread: of the "
        "rounds' p50, largest less smallest. CPU: time of processors for one version, of all.",
        "x NAME: how many times faster than that contender, whose receivers have copies. of limit: "
        "the time in which all receivers copy their parameters by memcpy, at the same time, as a "
        "part of the row's p50.",
    ),
)


@dataclass(frozen=True)
class Options:
    """sizes: of all weights together, in bytes; peers: beside ours, of which those in ``may_lack``
    need not be installed; seconds: of one visit; limits: whether memory is measured."""

    cases: Sequence[str]
    sizes: Sequence[int]
    receivers: int
    transports: Sequence[str]
    peers: Sequence[str]
    limits: bool
    rounds: int
    seconds: float
    may_lack: Sequence[str] = ()


@dataclass
class Weights(Suite):
    """Each entry is its trainers, mostly one, and its receivers, each in a process of its own."""

    name = "weights"
    baseline = Entry("gloo", "tcp")
    layout: ClassVar[Layout] = LAYOUT
    start_seconds = 4.0
    visit_overhead = 4.0

    receivers: int = 2

    @classmethod
    def of(cls, options: Options) -> Weights:
        """Raises ValueError for a peer that does not exist."""
        own = [name for name in OWN if find(name).transports[0] in options.transports]
        peers = [each for name in options.peers for each in (name, *find(name).variants())]
        names = dict.fromkeys((*peers, *own, *([LIMIT] if options.limits else [])))
        return cls(
            [Entry(name, way) for name in names for way in find(name).transports],
            [Work(case, size) for size in options.sizes for case in options.cases],
            options.rounds,
            options.seconds,
            asdict(options),
            (*options.may_lack, TORCH),
            options.receivers,
        )

    def contender(self, name: str) -> Contender:
        return find(name)

    def start(self, entry: Entry) -> AbstractContextManager[Session]:
        return self.start_in(entry, None)

    def start_in(self, entry: Entry, room: Hashable) -> AbstractContextManager[Session]:
        ranks = self.contender(entry.contender).trainers + self.receivers
        if room == FIRST:
            return nullcontext(Fresh(lambda: _start(entry, ranks), COPIED))
        return _start(entry, ranks)

    def room(self, work: Work) -> Hashable:
        return FIRST if work.case == FIRST else None

    def blocks(self) -> list[list[Hashable]]:
        """First versions are compared with later ones: in the same rounds."""
        found: dict[Hashable, dict[Hashable, None]] = {}
        for work in self.works:
            case = COPIED if work.case == FIRST else work.case
            found.setdefault((case, work.size), {})[work.comparable] = None
        return [list(keys) for keys in found.values()]

    def duty(self, entry: Entry) -> list[Work]:
        library = self.contender(entry.contender)
        return [work for work in self.works if library.supports(work)]

    def moved(self, work: Work) -> int:
        return work.size * (1 if work.case == RESHARDED else self.receivers)

    def details(self, results: Results, found: Sequence[Row]) -> dict[str, Any]:
        return {"receivers": self.receivers, "as_others": {PUBLISHED: COPIED}}


@contextmanager
def _start(entry: Entry, size: int) -> Iterator[Ranks]:
    def commands(path: str) -> list[list[str]]:
        agent = [sys.executable, "-m", "tensorwire.bench.suites.weights.agent"]
        ranks = [[*agent, entry.contender, str(rank), str(size), path] for rank in range(size)]
        return find(entry.contender).launch(ranks)

    with started(commands, size) as hellos:
        yield Ranks([control for control, _ in hellos], [hello for _, hello in hellos])
