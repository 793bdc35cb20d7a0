# SPDX-License-Identifier: Apache-2.0
"""Who takes part in ``tensorwire bench tensorflow``, in what, and how the figures look."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import ClassVar, Final

from tensorwire.bench.harness.report import (
    CONTENDER,
    PATH,
    Layout,
    duration,
    figure,
    share,
)
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.suite import Session, Suite, SuiteError
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.tensorflow import cases, mirrored
from tensorwire.bench.suites.tensorflow.cases import MIRRORED
from tensorwire.bench.suites.tensorflow.cluster import start, start_workers
from tensorwire.bench.suites.tensorflow.contender import Contender, find

OWN: Final = "tensorwire"
PLANNED: Final = "tensorwire-planned"
LIMIT: Final = Entry("nothing", "none")

LAYOUT: Final = Layout(
    title=lambda report: "tensorwire bench tensorflow",
    columns=(
        CONTENDER,
        PATH,
        figure("p50", lambda row: row.p50_us, duration),
        figure("spread", lambda row: row.p50_spread, share, leaves=3),
        figure("p99", lambda row: row.p99_us, duration, leaves=1),
        figure("CPU s/step", lambda row: row.cpu_s_per_call, leaves=2),
        figure("x grpc", lambda row: row.ratio),
        figure("x p99", lambda row: row.p99_ratio, leaves=4),
        figure("in place", lambda row: row.in_place, share),
        figure("steps", lambda row: row.calls, str, leaves=5),
    ),
    legend=(
        "A step is a whole session.run, and in the case mirrored a whole strategy.run, on the "
        "worker for which it took longest; p50 and p99: the median over the rounds of each "
        "round's own quantile. spread: of the rounds' p50, largest less smallest.",
        "CPU: seconds of both processes, all their threads, for one step.",
        "x grpc: how many times faster than stock gRPC in the same rounds, by p50; x p99: by p99.",
        "in place: the share of the bytes that the receiver read in the sender's memory; "
        "collectives do not count it.",
    ),
)


@dataclass(frozen=True)
class Options:
    """transports: tensorwire's; sizes: of the case ``tensor``; many_sizes: of each variable of the
    case ``many``; step_size, reduce_size, model_size: of the other cases; all in bytes. seconds: of
    one visit. peers: beside stock gRPC."""

    transports: Sequence[str]
    cases: Sequence[str]
    sizes: Sequence[int]
    many_sizes: Sequence[int]
    step_size: int
    reduce_size: int
    model_size: int
    rounds: int
    seconds: float
    peers: Sequence[str] = ()


class Steps(Suite):
    """Each entry is a cluster of two tasks, and another one for the case ``mirrored``."""

    name = "tensorflow"
    baseline = Entry("grpc", "grpc")
    layout: ClassVar[Layout] = LAYOUT
    start_seconds = 8.0
    visit_overhead = 0.3

    @classmethod
    def of(cls, options: Options) -> Steps:
        """Raises ValueError for a peer that does not exist."""
        sizes = {
            "tensor": options.sizes,
            "many": [cases.MANY * size for size in options.many_sizes],
            "ps-step": [options.step_size],
            "allreduce": [options.reduce_size],
            MIRRORED: [mirrored.whole(options.model_size)],
        }
        names = (OWN, PLANNED) if "many" in options.cases else (OWN,)
        limits = [LIMIT] if MIRRORED in options.cases else []
        own = (Entry(name, transport) for transport in options.transports for name in names)
        others = (Entry(peer, way) for peer in options.peers for way in find(peer).transports)
        return cls(
            list(dict.fromkeys([cls.baseline, *own, *others, *limits])),
            [cases.work(case, size) for case in options.cases for size in sizes[case]],
            options.rounds,
            options.seconds,
            asdict(options),
        )

    def prepare(self) -> Mapping[str, str]:
        from tensorwire.tensorflow import PluginError, build

        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only, here and in the agents
        try:
            tensorflow = build.installed()
            build.plugin(tensorflow)  # now: the agents have no time to wait for it
        except PluginError as error:
            raise SuiteError(str(error)) from error
        return {"tensorflow": tensorflow.version}

    def contender(self, name: str) -> Contender:
        return find(name)

    def start(self, entry: Entry) -> AbstractContextManager[Session]:
        return start(entry)

    def start_in(self, entry: Entry, room: Hashable) -> AbstractContextManager[Session]:
        return start_workers(entry) if room == MIRRORED else self.start(entry)

    def duty(self, entry: Entry) -> list[Work]:
        alone = self.contender(entry.contender).alone
        return [work for work in self.works if work.case == MIRRORED or not alone]

    def room(self, work: Work) -> Hashable:
        return work.case if work.case == MIRRORED else None

    def moved(self, work: Work) -> int:
        return cases.moved(work)
