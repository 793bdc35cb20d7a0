# SPDX-License-Identifier: Apache-2.0
"""Who takes part in ``tensorwire bench channels``, in what, and how the figures look."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from subprocess import CalledProcessError
from typing import TYPE_CHECKING, Any, ClassVar, Final

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
from tensorwire.bench.inventories import load
from tensorwire.bench.suites.channels.compute import ONE_CORE, products_on_one_core
from tensorwire.bench.suites.channels.contender import Contender, find
from tensorwire.bench.suites.collectives.ranks import Ranks
from tensorwire.terminal import Column

if TYPE_CHECKING:
    from pathlib import Path

LIMIT: Final = "nothing"


def _of(report: Report, name: str) -> Any:
    found = dict(zip(map(id, report.rows), report.details["rows"], strict=True))
    return lambda row: found[id(row)][name]


def _more(report: Report) -> Sequence[Column]:
    return [figure("efficiency", _of(report, "efficiency"), share), NOTE]


LAYOUT: Final = Layout(
    title=lambda report: (
        f"tensorwire bench channels: {report.details['model']}, "
        f"{report.details['bytes'] / 1e6:.0f} MB of gradients"
    ),
    columns=(
        CONTENDER,
        PATH,
        figure("step", lambda row: row.p50_us, duration),
        figure("spread", lambda row: row.p50_spread, share, leaves=6),
        figure("images/s", lambda row: row.items_per_s),
        figure("CPU", lambda row: row.cpu_s_per_call, lambda seconds: duration(seconds * 1e6), 1),
        figure("x grpc", lambda row: row.ratio, significant, leaves=2),
    ),
    group=lambda row: f"{row.callers} rank{'s' if row.callers > 1 else ''}",
    more=_more,
    legend=(
        "step: the median over the rounds of each round's median step, on the rank for which it "
        "took longest; it computes, and averages the gradients over all ranks. spread: of the "
        "rounds' medians, largest less smallest.",
        "images/s: of all ranks together. efficiency: images/s by those of as many ranks, each as "
        "fast as one that exchanges nothing and is alone. More ranks than processors cannot have "
        "all of it: the limit line (nothing) computes alone.",
        "CPU: time of processors for one step, of all ranks, servers and their threads.",
        "x grpc: how many times faster than the stock parameter server, in the same rounds.",
    ),
)


@dataclass(frozen=True)
class Options:
    """ranks: numbers of them; model: of the inventories; batch: images of a step on each rank;
    compute: seconds of a step without communication; peers: contenders, of which those in
    ``may_lack`` need not be installed; seconds: of one visit."""

    model: str
    ranks: Sequence[int]
    batch: int
    compute: float
    peers: Sequence[str]
    rounds: int
    seconds: float
    may_lack: Sequence[str] = ()


@dataclass
class Channels(Suite):
    """Each entry is a training, for each number of ranks one of its own, whose processes stay."""

    name = "channels"
    baseline = Entry("grpcio", "grpc")
    layout: ClassVar[Layout] = LAYOUT
    start_seconds = 8.0
    visit_overhead = 1.0

    batch: int = 1
    compute: float = 0.0
    products: int = 0

    @classmethod
    def of(cls, options: Options) -> Channels:
        """Raises ValueError for a model or a peer that does not exist."""
        nbytes = 4 * sum(tensor.elements for tensor in load(options.model))
        return cls(
            [Entry(name, way) for name in options.peers for way in _ways(find(name))],
            [Work(options.model, nbytes, callers=ranks) for ranks in options.ranks],
            options.rounds,
            options.seconds,
            asdict(options),
            options.may_lack,
            options.batch,
            options.compute,
        )

    def contender(self, name: str) -> Contender:
        return find(name)

    def prepare(self) -> Mapping[str, str]:
        try:
            self.products = products_on_one_core(self.compute)
        except CalledProcessError as error:
            raise SuiteError(f"how much a rank computes cannot be found out: {error}") from error
        return {}

    def room(self, work: Work) -> Hashable:
        return work.callers

    def start(self, entry: Entry) -> AbstractContextManager[Session]:
        raise NotImplementedError("a training has a number of ranks: start_in")

    def start_in(self, entry: Entry, room: Hashable) -> AbstractContextManager[Session]:
        assert isinstance(room, int)
        return start(entry, room, self.works[0].case, self.products)

    def moved(self, work: Work) -> int:
        return 2 * work.size * work.callers

    def details(self, results: Results, found: Sequence[Row]) -> dict[str, Any]:
        for place, row in enumerate(found):
            images = row.callers * self.batch
            found[place] = replace(row, items_per_s=images / row.p50_us * 1e6, gb_per_s=None)  # type: ignore[index,operator]
        alone = next((row for row in found if (row.contender, row.callers) == (LIMIT, 1)), None)
        return {
            "model": self.works[0].case,
            "bytes": self.works[0].size,
            "batch": self.batch,
            "products": self.products,
            "rows": [_details_of(row, alone) for row in found],
        }


def _ways(contender: Contender) -> Sequence[str]:
    """What a host has of them: only one that has none of a contender's lacks it."""
    every = contender.transports
    return [way for way in every if contender.viable(way) is None] or every


def _details_of(row: Row, alone: Row | None) -> dict[str, Any]:
    best = alone.items_per_s if alone else None
    speed = row.items_per_s
    return {
        "contender": row.contender,
        "transport": row.transport,
        "ranks": row.callers,
        "efficiency": speed / (best * row.callers) if speed and best else None,
    }


@contextmanager
def start(entry: Entry, size: int, model: str, products: int) -> Iterator[Ranks]:
    """Starts the processes of a training and ends them, whatever state they are in."""
    contender = find(entry.contender)
    count = size + contender.servers
    variables = {**ONE_CORE, **contender.environment(entry.transport)}
    agent = [
        *("env", *(f"{name}={value}" for name, value in variables.items())),
        *(sys.executable, "-m", "tensorwire.bench.suites.channels.agent"),
        *(entry.contender, entry.transport),
    ]

    def commands(path: str) -> list[list[str]]:
        more = (str(size), model, str(products), path)
        return contender.launch([[*agent, str(number), *more] for number in range(count)])

    with started(commands, count) as hellos:
        yield Ranks([control for control, _ in hellos], [hello for _, hello in hellos])


def plot(report: Report, path: Path) -> None:
    """Images a second over the number of ranks, a line for each channel: a colour for each
    contender, a kind of line for each of its transports. ImportError where matplotlib is missing.
    """
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9, 5), layout="constrained")
    axis = picture.subplots()
    series: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in report.rows:
        if row.items_per_s is not None:
            lines = series.setdefault(row.contender, {})
            lines.setdefault(row.transport, []).append((row.callers, row.items_per_s))
    for place, (contender, lines) in enumerate(series.items()):
        for (transport, points), kind in zip(lines.items(), cycle(("-", "--", ":")), strict=False):
            label = f"{contender} {transport}"
            xy = zip(*sorted(points), strict=True)
            axis.plot(*xy, f"C{place}{kind}", marker="o", label=label)
    axis.set(title=report.details["model"], xlabel="ranks", ylabel="images/s")
    axis.set_xticks(sorted({row.callers for row in report.rows}))
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    picture.legend(fontsize="small", loc="outside right upper")
    picture.savefig(path)
