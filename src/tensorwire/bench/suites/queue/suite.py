# SPDX-License-Identifier: Apache-2.0
"""Who takes part in ``tensorwire bench queue``, in what, and how the figures look."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Sequence
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
from tensorwire.bench.suites.queue.contender import Contender, find
from tensorwire.terminal import Column

OWN: Final = "tensorwire"

LAYOUT: Final = Layout(
    title=lambda report: "tensorwire bench queue",
    columns=(
        CONTENDER,
        PATH,
        Column("producers", lambda row: str(row.callers), leaves=3),
        figure("items/s", lambda row: row.calls_per_s, rate),
        figure("GB/s", lambda row: row.gb_per_s, leaves=5),
        figure("p50", lambda row: row.p50_us, duration, leaves=7),
        figure("p99", lambda row: row.p99_us, duration, leaves=2),
        figure("spread", lambda row: row.p50_spread, share, leaves=1),
        figure("CPU s/GB", lambda row: row.cpu_s_per_gb, leaves=4),
        figure("x grpcio", lambda row: row.ratio),
        NOTE,
    ),
    legend=(
        "Each producer makes an item, fills it and puts it, as fast as the queue takes them. The "
        "consumer reads all of each item and checks it.",
        "items/s: of all producers together. p50, p99: of the time from one item to the next at "
        "the consumer. CPU: of all processes.",
        "x grpcio: items/s against those of unary calls of grpcio, in the same rounds.",
    ),
)


@dataclass(frozen=True)
class Options:
    """transports: Tensorwire's; sizes: in bytes; producers: processes; peers: beside grpcio, of
    which those in ``may_lack`` need not be installed; seconds: of one visit."""

    transports: Sequence[str]
    sizes: Sequence[int]
    producers: int
    peers: Sequence[str]
    rounds: int
    seconds: float
    may_lack: Sequence[str] = ()


class Queues(Suite):
    """Each entry is, for each size, a consumer and its producers."""

    name = "queue"
    baseline = Entry("grpcio", "grpc")
    layout: ClassVar[Layout] = LAYOUT
    start_seconds = 2.0
    visit_overhead = 0.2
    figure = "calls_per_s"  # the time of an item is that within a group

    @classmethod
    def of(cls, options: Options) -> Queues:
        """Raises ValueError for a peer that does not exist."""
        return cls(
            [
                cls.baseline,
                *(Entry(OWN, transport) for transport in options.transports),
                *(Entry(peer, way) for peer in options.peers for way in find(peer).transports),
            ],
            [Work("queue", size, reads=True, callers=options.producers) for size in options.sizes],
            options.rounds,
            options.seconds,
            asdict(options),
            options.may_lack,
        )

    def contender(self, name: str) -> Contender:
        return find(name)

    def room(self, work: Work) -> Hashable:
        return work.size

    def start(self, entry: Entry) -> AbstractContextManager[Session]:
        raise NotImplementedError("a queue has items of one size: start_in")

    def start_in(self, entry: Entry, room: Hashable) -> AbstractContextManager[Session]:
        assert isinstance(room, int)
        return start(entry, room, self.works[0].callers)


class _Running:
    def __init__(self, control: Control, path: str, note: str) -> None:
        self._control = control
        self.path = path
        self.note = note

    def visit(self, work: Work, seconds: float) -> Visit:
        tell([self._control], {"seconds": seconds})
        return Visit(**expect(self._control, START_SECONDS + seconds * VISIT_FACTOR))


@contextmanager
def start(entry: Entry, size: int, producers: int) -> Iterator[_Running]:
    """Starts the processes of a queue and ends them, whatever state they are in."""

    def commands(path: str) -> list[list[str]]:
        agent = [sys.executable, "-m", "tensorwire.bench.suites.queue.agent"]
        return [[*agent, entry.contender, entry.transport, str(size), str(producers), path]]

    with started(commands, 1) as ((control, hello),):
        yield _Running(control, hello["path"], hello["note"])
