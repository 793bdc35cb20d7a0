# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of TF-gRPC-Bench, who takes part in them, and how the figures look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, Final

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
from tensorwire.bench.harness.resources import timeline
from tensorwire.bench.harness.rows import Report, Row, of_all_calls, samples, who
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.suite import Results, Session, Suite
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.tf_grpc.cluster import Measured, Settings, Topology, start
from tensorwire.bench.suites.tf_grpc.contender import Contender, Procedure, Request, find
from tensorwire.bench.suites.tf_grpc.payloads import Workload
from tensorwire.terminal import Column

if TYPE_CHECKING:
    from pathlib import Path

    from tensorwire.bench.harness.network import Link
    from tensorwire.bench.harness.ranks import Ranks

OWN: Final = "tensorwire"
BASELINE: Final = Entry("grpcio", "grpc")
LIMITS: Final = ("memory", "sockets")
PORT: Final = 50001


@dataclass(frozen=True)
class Benchmark:
    """One of the suite. unit: of what it is about."""

    name: str
    procedure: Procedure
    unit: str
    what: str


BENCHMARKS: Final = {
    each.name: each
    for each in (
        Benchmark("p2p-latency", "echo", "ms", "a worker calls a server, which echoes"),
        Benchmark("p2p-bandwidth", "acknowledge", "MB/s", "a worker calls, a server acknowledges"),
        Benchmark("ps-throughput", "acknowledge", "RPC/s", "each worker calls each server"),
        Benchmark("mimic", "echo", "RPC/s", "each node calls all others, which echo"),
    )
}


def topology(
    benchmark: str,
    servers: int | None,
    workers: int | None,
    remote: Sequence[str],
    both_ways: bool = False,
) -> Topology:
    """Raises ValueError for one that the benchmark cannot have. None: as the paper has it."""
    if both_ways:
        if not benchmark.startswith("p2p"):
            raise ValueError("pairs call each other in p2p-latency and p2p-bandwidth")
        if workers not in (None, servers or 1):
            raise ValueError("a pair is a server and a worker: give as many of both, or one number")
        if remote:
            raise ValueError(
                "--connect only calls: start pairs that call each other by a launcher, as mpirun"
            )
        return Topology(nodes=2 * (servers or 1), pairs=True)
    if benchmark != "mimic":
        pairs = benchmark.startswith("p2p")
        return Topology(
            len(remote) or servers or 1, workers or 1, pairs=pairs, remote=tuple(remote)
        )
    if workers is not None:
        raise ValueError("each node of mimic is a server and a worker: give --servers alone")
    if remote:
        raise ValueError("--connect only calls: start the nodes of mimic by a launcher, as mpirun")
    nodes = 4 if servers is None else servers
    if nodes < 2:
        raise ValueError("mimic needs two nodes or more: give --servers 2")
    return Topology(nodes=nodes)


def topology_of_ranks(
    benchmark: str, size: int, servers: int | None, workers: int | None, both_ways: bool = False
) -> Topology:
    """Of so many ranks of a launcher: the first ones are the servers, the others the workers.
    Raises ValueError for what the benchmark cannot have, or these ranks are not."""
    if benchmark == "mimic":
        first = servers or size
    else:
        first = servers or (size // 2 if benchmark.startswith("p2p") else 1)
    others = workers if both_ways or benchmark == "mimic" else workers or size - first
    found = topology(benchmark, first, others, (), both_ways)
    if len(found.roles()) != size:
        raise ValueError(f"the launcher has started {size} processes, not {len(found.roles())}")
    return found


def _mb_per_s(row: Row) -> float | None:
    return None if row.gb_per_s is None else row.gb_per_s * 1e3


def _group(row: Row) -> str:
    who = f" x{row.callers}" if row.callers > 1 else ""
    size = f"{row.size} B" if row.size < 10_000 else f"{row.size / 1e6:.2f} MB"
    return f"{row.case} {size}{who}"


def _payload(row: Row) -> str:
    return row.origin if row.payload == "non-serialized" else row.payload


def _more(report: Report) -> Sequence[Column]:
    found = dict(zip(map(id, report.rows), report.details["rows"], strict=True))
    serialized = [row for row in report.rows if row.payload == "serialized"]
    column = figure("serializers", lambda row: found[id(row)]["serialization_us"], duration, 3)
    return [column, NOTE] if serialized else [NOTE]


def _title(report: Report) -> str:
    details = report.details
    if details["nodes"]:
        called = "the other of its pair" if details.get("pairs") else "all others"
        who = f"{details['nodes']} nodes, each of which calls {called}"
    else:
        who = f"{details['servers']} parameter server(s), {details['workers']} worker(s)"
    calls = details.get("window", 1)
    window = f", {calls} calls of each under way" if calls > 1 else ""
    network = f", {details['network']}" if details.get("network") else ""
    hosts = f", on {', '.join(dict.fromkeys(details['hosts']))}" if details.get("hosts") else ""
    return f"tensorwire bench {report.suite}: {who}{window}{network}{hosts}"


def _network(link: Link | None) -> str:
    if link is None:
        return ""
    delay = f" and {link.delay} one way" if link.delay else ""
    return f"a network namespace for each process, with a link of {link.rate}{delay}"


LAYOUT: Final = Layout(
    title=_title,
    columns=(
        CONTENDER,
        PATH,
        Column("payload", _payload, text=True),
        Column("read", lambda row: "yes" if row.reads else "no", text=True, leaves=1),
        figure("p50", lambda row: row.p50_us, duration),
        figure("spread", lambda row: row.p50_spread, share, leaves=4),
        figure("p99", lambda row: row.p99_us, duration, leaves=5),
        figure("MB/s", _mb_per_s),
        figure("RPC/s", lambda row: row.calls_per_s, rate),
        figure("CPU s/GB", lambda row: row.cpu_s_per_gb, leaves=6),
        figure("x grpcio", lambda row: row.ratio),
    ),
    group=_group,
    more=_more,
    legend=(
        "p50, p99: of a call until its reply is there, the median over the rounds of each round's "
        "own quantile. An echo carries the payload both ways. spread: of the rounds' p50, largest "
        "less smallest.",
        "MB/s: of 10^6 bytes of payload, both ways of an echo, also over shm, where what was "
        "received may go back without a copy. RPC/s: of all workers together.",
        "read: every receiver adds up all bytes, which is in the times; otherwise it looks at none."
        " What is published, goes over shm and is not read is only announced: there is no rate and "
        "no ratio.",
        "CPU: seconds of all processes here, all their threads, for 10^9 bytes of payload.",
        "x grpcio: how many times faster than grpcio (sync, ready messages), in the same rounds, "
        "by p50 (several workers, or calls under way: by RPC/s).",
    ),
)


@dataclass(frozen=True)
class Options:
    """workloads: what calls carry; modes, origins, reads: as of ``Request``. transports:
    Tensorwire's. without: ideas, for each of which there is a variant of it that does without.
    window: calls that a caller has under way.
    peers: beside grpcio, of which those in ``may_lack`` need not be installed. remote: addresses of
    the servers of each contender, where they run elsewhere already."""

    benchmark: str
    workloads: Sequence[Workload]
    modes: Sequence[str]
    origins: Sequence[str]
    reads: Sequence[bool]
    topology: Topology
    transports: Sequence[str]
    peers: Sequence[str]
    rounds: int
    seconds: float
    settings: Settings
    without: Sequence[str] = ()
    may_lack: Sequence[str] = ()
    remote: Mapping[str, Sequence[str]] = field(default_factory=dict)
    window: int = 1


@dataclass
class Payloads(Suite):
    """Each entry is a set of processes that stay from the beginning to the end."""

    baseline = BASELINE
    layout: ClassVar[Layout] = LAYOUT
    start_seconds = 2.0
    visit_overhead = 0.1

    options: Options = field(kw_only=True)
    ranks: Ranks | None = field(kw_only=True, default=None)

    @classmethod
    def of(cls, options: Options, ranks: Ranks | None = None) -> Payloads:
        """ranks: of a launcher, which start the processes. Raises ValueError for a peer that does
        not exist, and for payloads of the same name."""
        names = [each.name for each in options.workloads]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"several payloads are called {min(twice)!r}: measure one at a time")
        made: type[Payloads] = type(options.benchmark, (cls,), {"name": options.benchmark})
        return made(
            entries(options.transports, options.peers, options.without),
            plan(options),
            options.rounds,
            options.seconds,
            {name: each for name, each in asdict(options).items() if name != "workloads"},
            options.may_lack,
            options=options,
            ranks=ranks,
        )

    def contender(self, name: str) -> Contender:
        return find(name)

    def start(self, entry: Entry) -> AbstractContextManager[Session]:
        options = self.options
        topology = options.topology
        if topology.remote:
            addresses = tuple(options.remote[entry.contender])
            topology = replace(topology, remote=addresses)
        return start(entry, topology, self.request, options.settings, self.ranks)

    def _why_not(self, entry: Entry) -> str | None:
        options = self.options
        apart = self.ranks or options.topology.remote or options.settings.link
        if apart and self.contender(entry.contender).near:
            return "it is for one host: not for --network, --connect and launchers"
        if self.options.topology.remote and entry.contender not in self.options.remote:
            return "it is not served there: give --serve the same --peers"
        return super()._why_not(entry)

    def duty(self, entry: Entry) -> list[Work]:
        """The same in ordinary memory, each once, where the library knows no other."""
        library = self.contender(entry.contender)
        if self.options.window > 1 and BENCHMARKS[self.name].procedure not in library.pipelines:
            return []
        own = (
            work if work.origin in library.origins else replace(work, origin="ordinary")
            for work in self.works
        )
        return [work for work in dict.fromkeys(own) if library.supports(work)]

    def request(self, work: Work) -> Request:
        """What calls of a work are."""
        (workload,) = (each for each in self.options.workloads if each.name == work.case)
        procedure = BENCHMARKS[self.name].procedure
        return Request(
            *(procedure, work.payload, work.origin, work.reads, workload.payloads),
            self.options.window,
        )

    def moved(self, work: Work) -> int:
        return work.size * (2 if BENCHMARKS[self.name].procedure == "echo" else 1)

    def warm_up_seconds(self) -> float:
        return self.options.settings.warm_up

    def details(self, results: Results, found: Sequence[Row]) -> dict[str, Any]:
        topology = self.options.topology
        return {
            "unit": BENCHMARKS[self.name].unit,
            "servers": topology.servers,
            "workers": topology.workers,
            "nodes": topology.nodes,
            "pairs": topology.pairs,
            "window": self.options.window,
            "network": _network(self.options.settings.link),
            "hosts": [] if self.ranks is None else self.ranks.names,
            "payloads": {
                each.name: [list(payload) for payload in each.payloads]
                for each in self.options.workloads
            },
            "rows": [
                _details(row, visits)
                for row, visits in zip(found, results.visits.values(), strict=True)
            ],
            "samples": [
                _resources(row, visits)
                for row, visits in zip(found, results.visits.values(), strict=True)
            ],
        }


def _details(row: Row, visits: Sequence[Any]) -> dict[str, Any]:
    rounds: list[Measured] = list(visits)
    return {
        **who(row),
        **of_all_calls(rounds),
        "serialization_us": median(each.serialization_us for each in rounds),
        "samples_us": samples(rounds),
    }


def _resources(row: Row, visits: Sequence[Any]) -> dict[str, Any]:
    rounds: list[Measured] = list(visits)
    seconds, figures = timeline([each.resources for each in rounds])
    way = f"{row.transport} {_payload(row)}"
    what = f"{_group(row)}{', read' * row.reads}"
    who = {"contender": row.contender, "transport": way, "case": what}
    return {**who, "seconds": seconds, "figures": figures}


def entries(
    transports: Sequence[str], peers: Iterable[str], without: Sequence[str] = ()
) -> list[Entry]:
    """The baseline, Tensorwire and its variants on each of ``transports``, then the peers and
    theirs on all of their own. Raises ValueError for a peer that does not exist."""
    own = [OWN, *(f"{OWN}-without-{idea}" for idea in without)]
    found = [BASELINE, *(Entry(name, transport) for transport in transports for name in own)]
    for peer in peers:
        for name in (peer, *find(peer).variants()):
            found.extend(Entry(name, transport) for transport in find(name).transports)
    return list(dict.fromkeys(found))


def plan(options: Options) -> list[Work]:
    """Every combination that means something, each once: what is serialized lies in no arena."""
    works = (
        Work(
            workload.name,
            workload.nbytes,
            mode,
            origin if mode == "non-serialized" else "ordinary",
            reads,
            options.topology.callers * options.window,
        )
        for workload in options.workloads
        for mode in options.modes
        for origin in options.origins
        for reads in options.reads
    )
    return list(dict.fromkeys(works))


def _height(row: Row, unit: str) -> float:
    figures = {"ms": (row.p50_us or 0) / 1e3, "MB/s": _mb_per_s(row), "RPC/s": row.calls_per_s}
    return figures[unit] or 0.0


def plot(report: Report, path: Path) -> None:
    """The benchmark's own figure as bars: a group for each payload, a bar for each contender.
    Raises ImportError where matplotlib is missing."""
    from matplotlib.figure import Figure

    unit = report.details["unit"]
    groups = list(dict.fromkeys(_group(row) for row in report.rows))
    series: dict[str, dict[str, float]] = {}
    for row in report.rows:
        label = f"{row.contender} {row.transport}, {_payload(row)}{', read' * row.reads}"
        label += ", only announced" * row.announced
        series.setdefault(label, {})[_group(row)] = _height(row, unit)
    picture = Figure(figsize=(3 + 2.5 * len(groups), 5), layout="constrained")
    axis = picture.subplots()
    width = 0.8 / max(len(series), 1)
    for place, (label, bars) in enumerate(series.items()):
        across = [groups.index(group) + (place + 0.5) * width - 0.4 for group in bars]
        axis.bar(across, list(bars.values()), width, label=label)
    axis.set(title=LAYOUT.title(report), ylabel=unit)
    axis.set_xticks(range(len(groups)), groups)
    axis.grid(axis="y", alpha=0.3)
    axis.legend(fontsize="small")
    picture.savefig(path)
