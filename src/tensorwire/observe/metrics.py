# SPDX-License-Identifier: Apache-2.0
"""Statistics as Prometheus metrics: which there are, and how those of links that come and go are
added up."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakKeyDictionary

from prometheus_client.core import REGISTRY, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tensorwire import _core

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from tensorwire.rpc.registry import Watched

Facts = Mapping[str, object]
Labels = tuple[str, ...]
UPTO: Final = "upto"
"""The label of what is counted by the payload of messages: bytes, at most."""


@dataclass(frozen=True)
class Measure:
    """A metric and the statistics that it is read from.

    name: after ``tensorwire_`` and, for counters, before ``_total``; ends with its unit, if any.
    facts: names in the statistics, each with its values of ``labels``.
    by_size: they stand in each entry of ``classes``, whose name is the value of the last label.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    facts: Mapping[str, Labels]
    labels: Labels = ()
    by_size: bool = False

    def family(self, more: Labels = ()) -> CounterMetricFamily | GaugeMetricFamily:
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        return make(f"tensorwire_{self.name}", self.help, labels=[*more, *self.labels])


LINK_LABELS: Labels = ("role", "transport", "peer")
"""role: ``client`` or ``server``, the end of the link that this process is; transport: how bytes
move; peer: for a client the target of the channel, for a server the address of the client's host
without its port, which is another one for each link. Links that agree in all are added up."""


@cache
def link() -> tuple[Measure, ...]:
    """Of what the runtime counts for each link."""
    return _measures(_core.link_counters())


@cache
def memory() -> tuple[Measure, ...]:
    """Of what it counts for the memory of this process."""
    return _measures(_core.memory_counters())


def _measures(counters: Iterable[_core.Counter]) -> tuple[Measure, ...]:
    rows: dict[str, list[_core.Counter]] = {}
    for counter in counters:
        rows.setdefault(counter["metric"], []).append(counter)
    return tuple(
        Measure(
            name,
            first["kind"],
            first["help"],
            {each["name"]: tuple(each["labels"].values()) for each in (first, *others)},
            (*first["labels"], UPTO) if first["by_size"] else tuple(first["labels"]),
            first["by_size"],
        )
        for name, (first, *others) in rows.items()
    )


LINKS = Measure("links", "gauge", "Links that are alive.", {}, ("role", "transport"))
CHANNELS = Measure(
    "channels",
    "gauge",
    "Open channels, by the transport that their calls take; empty before the first call.",
    {},
    ("transport",),
)

LOST = Measure(
    "links_lost",
    "counter",
    "Links of channels that ended without being closed.",
    {},
    ("transport",),
)
FAILED = Measure(
    "links_failed",
    "counter",
    "Links of channels that could not be made although the server offered them.",
    {},
    ("transport",),
)


INCIDENTS = Measure(
    "incidents",
    "counter",
    "What peers did wrong, and what gave way to others.",
    {},
    ("kind", "reason"),
)


OPERATIONS = Measure(
    "group_operations",
    "counter",
    "Operations of groups that ended well, by the way that they went.",
    {},
    ("operation", "way"),
)
OPERATION_BYTES = Measure(
    "group_bytes",
    "counter",
    "Bytes that this rank gave to operations of groups, or was given, by the way that they went.",
    {},
    ("operation", "way"),
)


@dataclass(frozen=True)
class Watch:
    """Metrics of what is built on links. label: of its name; empty: it has none. Those of one name
    are added up, but for the version."""

    label: str
    measures: tuple[Measure, ...]

    @property
    def labels(self) -> Labels:
        return (self.label,) if self.label else ()

    def sums(self, members: Iterable[Watched]) -> dict[Labels, Counter[str]]:
        found: dict[Labels, Counter[str]] = {}
        for member in members:
            sums = found.setdefault((member.name,) if self.label else (), Counter())
            for fact, value in member.stats()._asdict().items():
                sums[fact] = max(sums[fact], value) if fact == "version" else sums[fact] + value
        return found


QUEUES = Watch(
    "queue",
    (
        Measure("queue_items", "gauge", "Items in the queue.", {"items": ()}),
        Measure("queue_bytes", "gauge", "Bytes of these items.", {"nbytes": ()}),
        Measure(
            "queue_handed_items",
            "gauge",
            "Items on their way to consumers, or in their hands and not yet confirmed.",
            {"handed": ()},
        ),
        Measure(
            "queue_waiting",
            "gauge",
            "Who waits: producers for room, consumers for items.",
            {"waiting_producers": ("producer",), "waiting_consumers": ("consumer",)},
            ("end",),
        ),
        Measure(
            "queue_streams",
            "gauge",
            "Streams of other processes that are open to put, or to get.",
            {"producers": ("producer",), "consumers": ("consumer",)},
            ("end",),
        ),
        Measure("queue_accepted_items", "counter", "Items that it has taken.", {"accepted": ()}),
        Measure(
            "queue_ended_items",
            "counter",
            "What became of items: confirmed by a consumer, lost with one, discarded at the "
            "queue's end, or withdrawn by their producers before it had taken them.",
            {
                "delivered": ("delivered",),
                "lost": ("lost",),
                "discarded": ("discarded",),
                "refused": ("refused",),
            },
            ("outcome",),
        ),
    ),
)
HOSTS = Watch(
    "",
    (
        Measure("remote_tensors", "gauge", "Tensors that peers are let at.", {"tensors": ()}),
        Measure("remote_tensor_bytes", "gauge", "Bytes of these tensors.", {"nbytes": ()}),
        Measure("remote_channels", "gauge", "Receivers that are open.", {"channels": ()}),
        Measure(
            "remote_allocations", "gauge", "Tensors that peers have allocated.", {"allocations": ()}
        ),
        Measure(
            "remote_allocated_bytes",
            "gauge",
            "What they take of the budget of remote.host.",
            {"allocated": ()},
        ),
        Measure("remote_budget_bytes", "gauge", "What peers may allocate in all.", {"budget": ()}),
    ),
)
PUBLICATIONS = Watch(
    "publication",
    (
        Measure("weights_version", "gauge", "The newest version.", {"version": ()}),
        Measure("weights_versions", "gauge", "Versions that can be pulled.", {"versions": ()}),
        Measure("weights_version_bytes", "gauge", "Bytes of one version.", {"nbytes": ()}),
        Measure(
            "weights_readers",
            "gauge",
            "Readers that are being sent parameters in place.",
            {"readers": ()},
        ),
        Measure(
            "weights_quota_bytes",
            "gauge",
            "Memory of the arena that readers on this host may hold without a copy.",
            {"quota": ()},
        ),
        Measure("weights_leased_bytes", "gauge", "What they hold of it.", {"leased": ()}),
        Measure(
            "weights_copied_packs",
            "counter",
            "Packs of tensors that were copied for a reader, because the quota was used up.",
            {"copied": ()},
        ),
        Measure(
            "weights_outside_versions",
            "counter",
            "Versions that are copied for each reader, because the arena had no room for them.",
            {"outside": ()},
        ),
    ),
)
WATCHES: Final = (QUEUES, HOSTS, PUBLICATIONS)


@dataclass
class Series:
    """One counter of links that come and go: its value never falls while one of them is alive."""

    value: float = 0.0
    ended: float = 0.0

    def follow(self, found: float) -> float:
        """found: the sum over the links that are alive. Returns the value to show."""
        if self.ended + found < self.value:  # a link has ended and taken its count with it
            self.ended = self.value - found
        self.value = self.ended + found
        return self.value


@dataclass
class Totals:
    """The statistics of links, added up by their labels."""

    links: Counter[Labels] = field(default_factory=Counter)
    sums: dict[Labels, Counter[Labels]] = field(default_factory=dict)
    """By the name in the statistics, and of what is counted by size the name of the class."""
    sizes: dict[str, None] = field(default_factory=dict)
    """The names of the classes, in their order."""

    def add(self, role: str, peer: str, stats: Facts) -> None:
        transport = str(stats["transport"])
        self.links[role, transport] += 1
        sums = self.sums.setdefault((role, transport, peer), Counter())
        for fact, value in stats.items():
            if isinstance(value, int):
                sums[fact,] += value
        classes = stats["classes"]
        assert isinstance(classes, dict)
        for upto, counted in classes.items():
            self.sizes[upto] = None
            for fact, value in counted.items():
                sums[fact, upto] += value

    def series(self, measure: Measure) -> Iterator[tuple[Labels, Labels]]:
        """The keys of what a metric shows, each with the values of its labels."""
        for fact, values in measure.facts.items():
            if measure.by_size:
                yield from (((fact, upto), (*values, upto)) for upto in self.sizes)
            else:
                yield (fact,), values


def host(address: str) -> str:
    """``ipv4:10.0.0.7:4242`` without the port; ``unix:`` as it is."""
    scheme, _, rest = address.partition(":")
    return f"{scheme}:{rest.rpartition(':')[0]}" if rest else address


class LinkCollector(Collector):
    """What ``register`` registers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[tuple[Labels, Labels], Series] = {}
        self._watched: dict[str, dict[Labels, dict[str, Series]]] = {}
        """By the label of a ``Watch``, the name, and the fact."""

    def describe(self) -> Iterator[Metric]:
        for measure in link():
            yield measure.family(LINK_LABELS)
        for measure in (
            *memory(),
            LINKS,
            CHANNELS,
            LOST,
            FAILED,
            INCIDENTS,
            OPERATIONS,
            OPERATION_BYTES,
        ):
            yield measure.family()
        for watch in WATCHES:
            for measure in watch.measures:
                yield measure.family(watch.labels)

    def collect(self) -> Iterator[Metric]:
        import tensorwire
        from tensorwire.observe import audit
        from tensorwire.rpc import registry

        totals = Totals()
        transports: Counter[str] = Counter()
        for channel in registry.CHANNELS.get().members():
            stats = channel.stats()
            transports[str(stats["transport"] or "")] += 1
            own = stats["link"]
            if isinstance(own, dict):
                totals.add("client", str(stats["target"]), own)
        for server in registry.SERVERS.get().members():
            for served in server.stats():
                totals.add("server", host(str(served["peer"])), served)
        yield from self._links(totals)
        yield from self._memory(tensorwire.arena_stats())
        family = LINKS.family()
        for labels, count in totals.links.items():
            family.add_metric(labels, count)
        yield family
        counted: list[tuple[Measure, Mapping[str, int]]] = [
            (CHANNELS, transports),
            (LOST, registry.LOST.get().counts()),
            (FAILED, registry.FAILED.get().counts()),
        ]
        for measure, counts in counted:
            family = measure.family()
            for transport, count in counts.items():
                family.add_metric([transport], count)
            yield family
        family = INCIDENTS.family()
        for reasons, count in audit.counts().items():
            family.add_metric(reasons, count)
        yield family
        operations, nbytes = OPERATIONS.family(), OPERATION_BYTES.family()
        for operation, way, count, size in _core.group_statistics():
            operations.add_metric([operation, way], count)
            nbytes.add_metric([operation, way], size)
        yield operations
        yield nbytes
        for watch, members in zip(
            WATCHES, (registry.QUEUES, registry.HOSTS, registry.PUBLICATIONS), strict=True
        ):
            yield from self._watches(watch, watch.sums(members.get().members()))

    def _links(self, totals: Totals) -> Iterator[Metric]:
        with self._lock:
            gone = [key for key in self._series if key[1] not in totals.sums]
            for key in gone:
                del self._series[key]
            for measure in link():
                family = measure.family(LINK_LABELS)
                for labels, sums in totals.sums.items():
                    for fact, values in totals.series(measure):
                        value: float = sums[fact]
                        if measure.kind == "counter":
                            series = self._series.setdefault((fact, labels), Series())
                            value = series.follow(value)
                        family.add_metric([*labels, *values], value)
                yield family

    def _watches(self, watch: Watch, sums: Mapping[Labels, Mapping[str, int]]) -> Iterator[Metric]:
        with self._lock:
            followed = self._watched.setdefault(watch.label, {})
            for name in [name for name in followed if name not in sums]:
                del followed[name]
            for measure in watch.measures:
                family = measure.family(watch.labels)
                for name, found in sums.items():
                    for fact, values in measure.facts.items():
                        value: float = found[fact]
                        if measure.kind == "counter":
                            series = followed.setdefault(name, {}).setdefault(fact, Series())
                            value = series.follow(value)
                        family.add_metric([*name, *values], value)
                yield family

    def _memory(self, stats: Facts) -> Iterator[Metric]:
        for measure in memory():
            family = measure.family()
            for fact in measure.facts:
                value = stats[fact]
                assert isinstance(value, int)
                family.add_metric([], value)
            yield family


_registering: Final = threading.Lock()  # guards what follows
_registered: Final[WeakKeyDictionary[CollectorRegistry, LinkCollector]] = WeakKeyDictionary()


def register(registry: CollectorRegistry = REGISTRY) -> LinkCollector:
    """Adds the metrics to a Prometheus registry; ``registry.unregister`` takes them out again.

    Where they are in it already, the same collector is returned. Raises ValueError when others have
    taken their names.
    """
    collector = LinkCollector()
    with _registering:
        try:
            registry.register(collector)
        except ValueError:
            if registry not in _registered:
                raise
            return _registered[registry]
        _registered[registry] = collector
        return collector
