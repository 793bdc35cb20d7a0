# SPDX-License-Identifier: Apache-2.0
"""Who takes part in ``tensorwire bench rpc``, in what, and how the figures look."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final

from tensorwire.bench.harness.fresh import FIRST, Fresh, of_steady
from tensorwire.bench.harness.report import (
    CONTENDER,
    NOTE,
    PATH,
    Layout,
    duration,
    figure,
    rate,
    share,
)
from tensorwire.bench.harness.rows import Row, of_all_calls, samples, who
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.suite import Results, Session, Suite
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.rpc.contender import Contender, find
from tensorwire.bench.suites.rpc.pair import start
from tensorwire.terminal import Column

CASES: Final = ("request", "pull", "stream", FIRST)
ORIGINS: Final = ("ordinary", "published")
LIMITS: Final = ("sockets", "memcpy")
OWN: Final = "tensorwire"

LAYOUT: Final = Layout(
    title=lambda report: "tensorwire bench rpc",
    columns=(
        CONTENDER,
        PATH,
        Column(
            "payload",
            lambda row: row.origin if row.payload == "array" else row.payload,
            text=True,
        ),
        Column("read", lambda row: "yes" if row.reads else "no", text=True, leaves=1),
        figure("p50", lambda row: row.p50_us, duration),
        figure("spread", lambda row: row.p50_spread, share, leaves=4),
        figure("p99", lambda row: row.p99_us, duration, leaves=3),
        figure("GB/s", lambda row: row.gb_per_s, leaves=5),
        figure("msg/s", lambda row: row.calls_per_s, rate, leaves=7),
        figure("CPU s/GB", lambda row: row.cpu_s_per_gb, leaves=6),
        figure("x grpcio", lambda row: row.ratio),
        figure("x p99", lambda row: row.p99_ratio, leaves=8),
        NOTE,
    ),
    more=lambda report: of_steady(report.rows, "request"),
    legend=(
        "p50 and p99: the median over the rounds of each round's own quantile; of a stream's time "
        "for one message where the case is stream. spread: of the rounds' p50, largest less "
        "smallest.",
        "read: the receiver adds up all bytes; otherwise it is handed them and looks at none. What "
        "is published, goes over shm and is not read is only announced: there is no rate and no "
        "ratio.",
        "CPU: seconds of both processes, all their threads, for 10^9 bytes of payload.",
        "x grpcio: how many times faster than grpcio (sync, ready messages) at the same case, size "
        "and reading, in the same rounds, by p50 (several callers: by msg/s); x p99: by p99.",
        "of steady: how many times as long the first request of two processes takes as later ones.",
    ),
)


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


class Calls(Suite):
    """Each entry is a pair of processes. What reads has a pair of its own: to a receiver that has
    read an arena, it is other memory."""

    name = "rpc"
    baseline = Entry("grpcio", "grpc")
    layout: ClassVar[Layout] = LAYOUT
    start_seconds = 1.0
    visit_overhead = 0.05

    @classmethod
    def of(cls, options: Options) -> Calls:
        """Raises ValueError for a peer that does not exist."""
        return cls(
            entries(options.transports, options.peers),
            plan(
                options.sizes,
                options.cases,
                options.origins,
                options.reads,
                options.callers,
                options.payloads,
            ),
            options.rounds,
            options.seconds,
            asdict(options),
            options.may_lack,
        )

    def contender(self, name: str) -> Contender:
        return find(name)

    def start(self, entry: Entry) -> AbstractContextManager[Session]:
        return start(entry.contender, entry.transport)

    def start_in(self, entry: Entry, room: Hashable) -> AbstractContextManager[Session]:
        if room == FIRST:
            return nullcontext(Fresh(lambda: start(entry.contender, entry.transport), "request"))
        return self.start(entry)

    def duty(self, entry: Entry) -> list[Work]:
        """The same in ordinary memory, each once, where the library knows no other."""
        library = self.contender(entry.contender)
        own = (
            work if work.origin in library.origins else replace(work, origin="ordinary")
            for work in self.works
        )
        return [work for work in dict.fromkeys(own) if library.supports(work)]

    def details(self, results: Results, found: Sequence[Row]) -> dict[str, Any]:
        visits = results.visits.values()
        return {
            "rows": [
                {**who(row), **of_all_calls(each), "samples_us": samples(each)}
                for row, each in zip(found, visits, strict=True)
            ]
        }

    def room(self, work: Work) -> Hashable:
        return FIRST if work.case == FIRST else work.reads

    def blocks(self) -> list[list[Hashable]]:
        sizes: dict[int, dict[Hashable, None]] = {}
        for work in self.works:
            sizes.setdefault(work.size, {})[work.comparable] = None
        return [list(keys) for keys in sizes.values()]


def entries(transports: Sequence[str], peers: Iterable[str]) -> list[Entry]:
    """The baseline, Tensorwire on each of ``transports``, then the peers and their variants on all
    of theirs.

    Raises ValueError for a peer that does not exist.
    """
    found = [Calls.baseline, *(Entry(OWN, transport) for transport in transports)]
    for peer in peers:
        for name in (peer, *find(peer).variants()):
            found.extend(Entry(name, transport) for transport in find(name).transports)
    return list(dict.fromkeys(found))


def plan(
    sizes: Sequence[int],
    cases: Sequence[str] = ("request", "pull", "stream"),
    origins: Sequence[str] = ORIGINS,
    reads: Sequence[bool] = (False, True),
    callers: int = 1,
    payloads: Sequence[str] = ("array",),
) -> list[Work]:
    """Every combination that means something, each once: a stream's receiver counts and never adds
    up, only arrays can be published, and one caller is the first."""
    works = (
        Work(
            case,
            size,
            payload,
            origin if payload == "array" else "ordinary",
            read,
            1 if case == FIRST else callers,
        )
        for size in sizes
        for case in cases
        for payload in payloads
        for origin in origins
        for read in reads
        if not (case == "stream" and read)
    )
    return list(dict.fromkeys(works))
