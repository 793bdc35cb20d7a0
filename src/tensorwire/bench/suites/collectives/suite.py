# SPDX-License-Identifier: Apache-2.0
"""Who takes part in ``tensorwire bench collectives``, in what, and how the figures look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final

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
from tensorwire.bench.harness.rows import Report, Row, of_all_calls
from tensorwire.bench.harness.schedule import Entry, Progress, silent
from tensorwire.bench.harness.suite import Results, Session, Suite
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.contender import Contender, find
from tensorwire.bench.suites.collectives.operations import OPERATIONS, dtype_of, whole
from tensorwire.bench.suites.collectives.ranks import start
from tensorwire.terminal import Column

OWN: Final = ("tensorwire", "tensorwire-torch")
LIMIT: Final = "memory"


def _detail(
    report: Report,
    name: str,
    read: Callable[[Any], float | None],
    text: Callable[[float], str] = significant,
) -> Column:
    """Of what ``Collectives.details`` has for each row."""
    found = dict(zip(map(id, report.rows), report.details["rows"], strict=True))
    return figure(name, lambda row: read(found[id(row)]), text)


def _on(device: str) -> str:
    return "" if device == "cpu" else f" on {device}"


def _ways(report: Report) -> Column:
    found = dict(zip(map(id, report.rows), report.details["rows"], strict=True))
    return Column("way", lambda row: ", ".join(found[id(row)]["ways"]), text=True, leaves=7)


def _more(report: Report) -> Sequence[Column]:
    def ratio(peer: str) -> Callable[[Any], float | None]:
        return lambda detail: detail["ratios"].get(peer)

    peers = dict.fromkeys(row.contender for row in report.rows)
    bus = _detail(report, "bus GB/s", lambda detail: detail["bus_gb_per_s"])
    least = _detail(report, "min", lambda detail: detail["min_us"], duration)
    limit = _detail(report, "of limit", ratio(LIMIT), share)
    types = dict.fromkeys(row.payload for row in report.rows if row.payload != "array")
    first = next(iter(types), "")
    beside = _detail(report, f"x {first}", lambda detail: detail["type_ratio"])
    return [
        *([Column("type", lambda row: row.payload, text=True), beside] if types else []),
        *([_ways(report)] if any(each["ways"] for each in report.details["rows"]) else []),
        replace(least, leaves=4),
        replace(bus, leaves=3),
        *(_detail(report, f"x {peer}", ratio(peer)) for peer in peers if peer not in (*OWN, LIMIT)),
        *([replace(limit, leaves=1)] if LIMIT in peers else []),
        NOTE,
    ]


LAYOUT: Final = Layout(
    title=lambda report: (
        f"tensorwire bench collectives: {report.details['ranks']} ranks, {report.details['dtype']}"
        f"{_on(report.details.get('device', 'cpu'))}"
    ),
    columns=(
        CONTENDER,
        PATH,
        figure("p50", lambda row: row.p50_us, duration),
        figure("spread", lambda row: row.p50_spread, share, leaves=6),
        figure("p99", lambda row: row.p99_us, duration, leaves=2),
        figure("GB/s", lambda row: row.gb_per_s or None, leaves=5),
        figure("CPU", lambda row: row.cpu_s_per_call, lambda seconds: duration(seconds * 1e6), 1),
    ),
    more=_more,
    legend=(
        "A call takes as long as on the rank for which it took longest. p50 and p99: the median "
        "over the rounds of each round's own quantile; min: of all calls. spread: of the rounds' "
        "p50, largest less smallest.",
        "ping_pong: half the time of a message there and one back; stream: the time of messages "
        "one way, begun together, divided by their number.",
        "The size is that of the larger of a rank's two arrays. GB/s: size by time (algorithm "
        "bandwidth); bus GB/s: what each rank's way has to carry of it, as nccl-tests define it.",
        "CPU: time of processors for one call, of all ranks and all their threads.",
        "way: that operations of tensorwire went, as its statistics tell.",
        "x NAME: how many times faster than that contender, by p50 in the same rounds; x TYPE: "
        "than the same bytes of that type. of limit: the time in which all ranks, at the same "
        "time, add an array of that size to another one in place (copy it, where nothing is added "
        "up), as a part of the row's p50; more than 100% where the operation moves less than that.",
    ),
)


@dataclass(frozen=True)
class Options:
    """cases: operations; sizes: in bytes; dtypes: of elements; peers: beside ours, of which those
    in ``may_lack`` need not be installed; seconds: of one visit; limits: whether memory is
    measured; device: where the data lies."""

    cases: Sequence[str]
    sizes: Sequence[int]
    ranks: int
    dtypes: Sequence[str]
    peers: Sequence[str]
    limits: bool
    rounds: int
    seconds: float
    may_lack: Sequence[str] = ()
    device: str = "cpu"


@dataclass
class Collectives(Suite):
    """Each entry is a group of ranks, each in a process of its own."""

    name = "collectives"
    baseline = Entry("gloo", "tcp")
    layout: ClassVar[Layout] = LAYOUT
    start_seconds = 4.0
    visit_overhead = 0.1

    ranks: int = 2
    dtypes: Sequence[str] = ("float32",)
    device: str = "cpu"

    @classmethod
    def of(cls, options: Options) -> Collectives:
        """Raises ValueError for a peer that does not exist, or that has nothing on that device."""
        for name in options.peers:
            if options.device not in find(name).devices:
                raise ValueError(f"{name} has no operations on {options.device}")
        own = [*OWN, *([LIMIT] if options.limits else [])]
        own = [name for name in own if options.device in find(name).devices]
        names = dict.fromkeys((*options.peers, *own))
        return cls(
            [Entry(name, way) for name in names for way in find(name).transports],
            plan(options.cases, options.sizes, options.ranks, *options.dtypes),
            options.rounds,
            options.seconds,
            asdict(options),
            options.may_lack,
            options.ranks,
            options.dtypes,
            options.device,
        )

    def contender(self, name: str) -> Contender:
        return find(name)

    def start(self, entry: Entry) -> AbstractContextManager[Session]:
        return start(entry, self.ranks, self.dtypes[0], self.device)

    def duty(self, entry: Entry) -> list[Work]:
        library = self.contender(entry.contender)
        return [
            work
            for work in self.works
            if library.supports(work, dtype_of(work, self.dtypes[0]), self.device)
        ]

    def measure(self, progress: Progress = silent) -> Results:
        results = super().measure(progress)
        if self.device == "cuda":
            import torch

            name, cuda = torch.cuda.get_device_name(), torch.version.cuda
            results.note(f"device: {name}, with PyTorch for CUDA {cuda}", failed=False)
        for entry in self.entries:
            where = f" on {self.device}" if self.device != "cpu" else ""
            for (dtype, reason), lacks in self._lacks(entry).items():
                if entry.contender != LIMIT:
                    named = ", ".join(lacks)
                    text = f"{entry}: has no {named} of {dtype}{where}"
                    results.note(f"{text}: {reason}" if reason else text, failed=False)
        return results

    def _lacks(self, entry: Entry) -> dict[tuple[str, str], dict[str, None]]:
        """The operations that it does not have, by the type of their elements and the reason, which
        is empty where the library does not have that type."""
        duty = {(work.case, work.payload) for work in self.duty(entry)}
        reasons = self.contender(entry.contender).lacks_on(self.device)
        found: dict[tuple[str, str], dict[str, None]] = {}
        for work in self.works:
            if (work.case, work.payload) not in duty:
                key = dtype_of(work, self.dtypes[0]), reasons.get(work.case, "")
                found.setdefault(key, {})[work.case] = None
        return found

    def details(self, results: Results, found: Sequence[Row]) -> dict[str, Any]:
        return {
            "ranks": self.ranks,
            "dtype": ", ".join(self.dtypes),
            "device": self.device,
            "rows": [_details_of(row, found, results, self.ranks) for row in found],
        }


def _details_of(row: Row, rows: Sequence[Row], results: Results, ranks: int) -> Mapping[str, Any]:
    visits = [
        visit
        for (entry, work), each in results.visits.items()
        if (entry.contender, work) == (row.contender, row.work)
        for visit in each
        if visit.path == row.transport
    ]
    return {
        "contender": row.contender,
        "case": row.case,
        "size": row.size,
        "payload": row.payload,
        **of_all_calls(visits),
        "ways": list(dict.fromkeys(way for visit in visits for way in visit.ways)),
        "bus_gb_per_s": (
            row.gb_per_s * OPERATIONS[row.case].bus(ranks)
            if row.gb_per_s and row.contender != LIMIT
            else None
        ),
        "ratios": {
            other.contender: other.p50_us / row.p50_us
            for other in rows
            if other.work == row.work and other.p50_us and row.p50_us
        },
        "type_ratio": _beside_first_type(row, rows),
    }


def _beside_first_type(row: Row, rows: Sequence[Row]) -> float | None:
    """How many times faster than the same bytes of the first type are, with the same contender; of
    rows of other types."""
    same = (row.contender, row.transport, row.case, row.size)
    first = next(
        each for each in rows if (each.contender, each.transport, each.case, each.size) == same
    )
    if first.payload == row.payload or not first.p50_us or not row.p50_us:
        return None
    return first.p50_us / row.p50_us


def plan(cases: Sequence[str], sizes: Sequence[int], ranks: int, *dtypes: str) -> list[Work]:
    """Each operation with each size, which for some is a few bytes more (``whole``), each once. Of
    several types each has the name of its own as payload."""
    works = (
        Work(case, whole(case, size, ranks, dtype), _payload(case, dtype, dtypes))
        for case in cases
        for size in sizes
        for dtype in dtypes
    )
    return list(dict.fromkeys(works))


def _payload(case: str, dtype: str, dtypes: Sequence[str]) -> str:
    return dtype if len(dtypes) > 1 and case != "barrier" else "array"
