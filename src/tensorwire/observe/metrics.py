# SPDX-License-Identifier: Apache-2.0
"""Statistics as Prometheus metrics: which there are, and how those of links that come and go are
added up."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from prometheus_client.core import REGISTRY, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tensorwire import _core
from tensorwire.observe.measure import Labels, Measure
from tensorwire.rpc import lifetime

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from tensorwire.rpc.registry import Watch

Facts = Mapping[str, object]
UPTO: Final = "upto"
"""The label of what is counted by the payload of messages: bytes, at most."""


def family(measure: Measure, more: Labels = ()) -> CounterMetricFamily | GaugeMetricFamily:
    make = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    return make(f"tensorwire_{measure.name}", measure.help, labels=[*more, *measure.labels])


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


class _Followed:
    """The counters of one process that come and go."""

    def __init__(self) -> None:
        self.generation = lifetime.generation()
        self.lock = threading.Lock()  # guards what follows
        self.series: dict[tuple[Labels, Labels], Series] = {}
        self.watched: dict[str, dict[Labels, dict[str, Series]]] = {}
        """By the label of a ``Watch``, the name, and the fact."""


class LinkCollector(Collector):
    """What ``register`` registers. Thread-safe. A forked child begins anew: it has none of its
    parent's links, nor the thread that may have held the lock."""

    def __init__(self) -> None:
        self._followed = _Followed()

    def describe(self) -> Iterator[Metric]:
        from tensorwire.rpc import registry

        for measure in link():
            yield family(measure, LINK_LABELS)
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
            yield family(measure)
        for watch in registry.WATCHES:
            for measure in watch.measures:
                yield family(measure, watch.labels)

    def collect(self) -> Iterator[Metric]:
        # Whoever read the statistics first must follow them first: another's older numbers would
        # look like those of links that have ended.
        with lifetime.adopting():
            if lifetime.inherited(self._followed.generation):
                self._followed = _Followed()
            followed = self._followed
        with followed.lock:
            found = [*self._collect(followed)]
        return iter(found)

    def _collect(self, followed: _Followed) -> Iterator[Metric]:
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
        yield from self._links(followed.series, totals)
        yield from self._memory(tensorwire.arena_stats())
        shown = family(LINKS)
        for labels, count in totals.links.items():
            shown.add_metric(labels, count)
        yield shown
        counted: list[tuple[Measure, Mapping[str, int]]] = [
            (CHANNELS, transports),
            (LOST, registry.LOST.get().counts()),
            (FAILED, registry.FAILED.get().counts()),
        ]
        for measure, counts in counted:
            shown = family(measure)
            for transport, count in counts.items():
                shown.add_metric([transport], count)
            yield shown
        shown = family(INCIDENTS)
        for reasons, count in audit.counts().items():
            shown.add_metric(reasons, count)
        yield shown
        operations, nbytes = family(OPERATIONS), family(OPERATION_BYTES)
        for operation, way, count, size in _core.group_statistics():
            operations.add_metric([operation, way], count)
            nbytes.add_metric([operation, way], size)
        yield operations
        yield nbytes
        for watch in registry.WATCHES:
            yield from self._watches(followed.watched, watch, watch.sums())

    def _links(
        self, followed: dict[tuple[Labels, Labels], Series], totals: Totals
    ) -> Iterator[Metric]:
        gone = [key for key in followed if key[1] not in totals.sums]
        for key in gone:
            del followed[key]
        for measure in link():
            shown = family(measure, LINK_LABELS)
            for labels, sums in totals.sums.items():
                for fact, values in totals.series(measure):
                    value: float = sums[fact]
                    if measure.kind == "counter":
                        series = followed.setdefault((fact, labels), Series())
                        value = series.follow(value)
                    shown.add_metric([*labels, *values], value)
            yield shown

    def _watches(
        self,
        watched: dict[str, dict[Labels, dict[str, Series]]],
        watch: Watch,
        sums: Mapping[Labels, Mapping[str, int]],
    ) -> Iterator[Metric]:
        followed = watched.setdefault(watch.label, {})
        for name in [name for name in followed if name not in sums]:
            del followed[name]
        for measure in watch.measures:
            shown = family(measure, watch.labels)
            for name, found in sums.items():
                for fact, values in measure.facts.items():
                    value: float = found[fact]
                    if measure.kind == "counter":
                        series = followed.setdefault(name, {}).setdefault(fact, Series())
                        value = series.follow(value)
                    shown.add_metric([*name, *values], value)
            yield shown

    def _memory(self, stats: Facts) -> Iterator[Metric]:
        for measure in memory():
            shown = family(measure)
            for fact in measure.facts:
                value = stats[fact]
                assert isinstance(value, int)
                shown.add_metric([], value)
            yield shown


_registering: Final = lifetime.PerProcess(threading.Lock)  # guards what follows
_registered: Final[WeakKeyDictionary[CollectorRegistry, LinkCollector]] = WeakKeyDictionary()


def register(registry: CollectorRegistry = REGISTRY) -> LinkCollector:
    """Adds the metrics to a Prometheus registry; ``registry.unregister`` takes them out again.

    Where they are in it already, the same collector is returned. Raises ValueError when others have
    taken their names.
    """
    collector = LinkCollector()
    with _registering.get():
        try:
            registry.register(collector)
        except ValueError:
            if registry not in _registered:
                raise
            return _registered[registry]
        _registered[registry] = collector
        return collector
