# SPDX-License-Identifier: Apache-2.0
"""Who takes part in ``tensorwire bench remote``, in what, and how the figures look."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import ClassVar, Final

from tensorwire.bench.harness.control import Control
from tensorwire.bench.harness.measure import Visit
from tensorwire.bench.harness.processes import START_SECONDS, VISIT_FACTOR, expect, started, tell
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
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.suite import Session, Suite
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.remote.contender import BATCH, PARTS, READS, Contender, find

OWN: Final = "tensorwire"
LIMIT: Final = Entry("memcpy", "memory")
PART_BYTES: Final = 4096
BLOCK_BYTES: Final = 64
SIZES: Final = {
    "batch": PARTS["batch"] * PART_BYTES,
    "prepare": PARTS["prepare"] * BLOCK_BYTES,
    "fetch_add": 8,
    "signal": 8,
    "jax": 64 << 20,
    "jax_published": 64 << 20,
}
"""Of cases that have one only, in bytes."""

LAYOUT: Final = Layout(
    title=lambda report: "tensorwire bench remote",
    columns=(
        CONTENDER,
        PATH,
        figure("p50", lambda row: row.p50_us, duration),
        figure(
            "each",
            lambda row: row.p50_us / BATCH if row.case == "batch" and row.p50_us else None,
            duration,
        ),
        figure("spread", lambda row: row.p50_spread, share, leaves=4),
        figure("p99", lambda row: row.p99_us, duration, leaves=3),
        figure("GB/s", lambda row: row.gb_per_s or None),
        figure("calls/s", lambda row: row.calls_per_s, rate, leaves=7),
        figure("of memcpy", lambda row: row.ratio, share),
        NOTE,
    ),
    legend=(
        "p50 and p99: the median over the rounds of each round's own quantile. spread: of the "
        "rounds' p50, largest less smallest.",
        "read: of memory that was made to be accessed; read_published: of an array in the arena "
        "that was published; read_staged: as read, but into other memory, from where it is copied.",
        f"batch: {BATCH} reads of {PART_BYTES} bytes that were prepared and are started together; "
        f"each: the time of one of them. prepare: {PARTS['prepare']:,} reads of {BLOCK_BYTES} "
        "bytes with gaps between them are described, and given up without being started. signal: a "
        "write of 8 bytes with a flag, seen by its owner, who does the same back. jax: an array of "
        "JAX becomes one here, which is added up; jax_published: one that lies in published memory "
        "of the arena.",
        "of memcpy: the speed as a part of that of a copy within one process, into memory that was "
        "touched before.",
    ),
)


@dataclass(frozen=True)
class Options:
    """transports: Tensorwire's; sizes: in bytes, of reads; peers: others, of which those in
    ``may_lack`` need not be installed; seconds: of one visit."""

    transports: Sequence[str]
    cases: Sequence[str]
    sizes: Sequence[int]
    peers: Sequence[str]
    rounds: int
    seconds: float
    may_lack: Sequence[str] = ()


class Accesses(Suite):
    """Each entry is a pair of processes."""

    name = "remote"
    baseline = LIMIT
    layout: ClassVar[Layout] = LAYOUT
    start_seconds = 1.0
    visit_overhead = 0.05

    @classmethod
    def of(cls, options: Options) -> Accesses:
        """Raises ValueError for a peer that does not exist."""
        entries = [LIMIT, *(Entry(OWN, transport) for transport in options.transports)]
        for peer in options.peers:
            entries += [Entry(peer, transport) for transport in find(peer).transports]
        return cls(
            list(dict.fromkeys(entries)),
            plan(options.cases, options.sizes),
            options.rounds,
            options.seconds,
            asdict(options),
            options.may_lack,
        )

    def contender(self, name: str) -> Contender:
        return find(name)

    def start(self, entry: Entry) -> AbstractContextManager[Session]:
        return start(entry.contender, entry.transport)

    def moved(self, work: Work) -> int:
        return 0 if work.case == "prepare" else work.size

    def duty(self, entry: Entry) -> list[Work]:
        cases = self.contender(entry.contender).cases
        return [work for work in self.works if work.case in cases]


def plan(cases: Sequence[str], sizes: Sequence[int]) -> list[Work]:
    """Only reads have more than one size."""
    works = []
    for case in cases:
        if case in READS:
            works += [Work(case, size) for size in sizes]
        else:
            works.append(Work(case, SIZES[case]))
    return list(dict.fromkeys(works))


class Pair:
    """Two agents that are connected to each other. Raises AgentError when one of them fails."""

    def __init__(self, owner: Control, client: Control, path: str, note: str) -> None:
        self.owner = owner
        self.client = client
        self.path = path
        self.note = note

    def visit(self, work: Work, seconds: float) -> Visit:
        limit = START_SECONDS + seconds * VISIT_FACTOR
        tell([self.owner], {"work": work.to_json()})
        expect(self.owner, limit, self.client)
        tell([self.client], {"work": work.to_json(), "seconds": seconds})
        return Visit(**expect(self.client, limit, self.owner))


@contextmanager
def start(name: str, transport: str) -> Iterator[Pair]:
    """Starts both agents of a contender and ends them, whatever state they are in."""

    def commands(path: str) -> list[list[str]]:
        command = [sys.executable, "-m", "tensorwire.bench.suites.remote.agent"]
        owner, client = ([*command, role, name, transport, path] for role in ("owner", "client"))
        return find(name).launch(owner, client)

    with started(commands, 2) as ((client, _), (owner, hello)):
        tell([client], {"address": hello["address"], "owner_pid": hello["pid"]})
        connected = expect(client, START_SECONDS, owner)
        yield Pair(owner, client, connected["path"], connected["note"])
