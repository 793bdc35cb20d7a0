# SPDX-License-Identifier: Apache-2.0
"""Statistics as Prometheus metrics: which there are, and how those of links that come and go are
added up."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakKeyDictionary

from prometheus_client.core import REGISTRY, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Facts = Mapping[str, object]
Labels = tuple[str, ...]

DIRECTIONS = ("sent", "received")
SIZE_CLASSES = ("256", "4096", "65536", "1048576", "16777216", "inf")
"""Messages are counted by their payload: up to so many bytes."""


@dataclass(frozen=True)
class Measure:
    """A metric and the statistics that it is read from.

    name: after ``tensorwire_`` and, for counters, before ``_total``; ends with its unit, if any.
    facts: names in the statistics, each with its values of ``labels``.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    facts: Mapping[str, Labels]
    labels: Labels = ()

    def family(self, more: Labels = ()) -> CounterMetricFamily | GaugeMetricFamily:
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        return make(f"tensorwire_{self.name}", self.help, labels=[*more, *self.labels])


def _plain(name: str, kind: Literal["counter", "gauge"], text: str, fact: str) -> Measure:
    return Measure(name, kind, text, {fact: ()})


def _by_size(name: str, text: str, what: str) -> Measure:
    facts = {
        f"classes.{upto}.{what}_{direction}": (direction, upto)
        for upto in SIZE_CLASSES
        for direction in DIRECTIONS
    }
    return Measure(name, "counter", text, facts, ("direction", "upto"))


LINK_LABELS: Labels = ("role", "transport", "peer")
"""role: ``client`` or ``server``, the end of the link that this process is; transport: how bytes
move; peer: for a client the target of the channel, for a server the address of the client's host
without its port, which is another one for each link. Links that agree in all are added up."""

LINK: tuple[Measure, ...] = (
    _by_size("link_messages", "Messages, by bytes of payload (at most).", "messages"),
    _by_size("link_payload_bytes", "Payload, by bytes in its message (at most).", "bytes"),
    Measure(
        "link_segments",
        "counter",
        "Segments, by how they travelled: inside a frame with others, alone at once, in chunks "
        "that were pushed, as a descriptor of shared memory, or read by the receiver.",
        {
            "segments_sent_inline": ("sent", "inline"),
            "segments_sent_pushed": ("sent", "pushed"),
            "segments_sent_mapped": ("sent", "mapped"),
            "segments_sent_read": ("sent", "read"),
            "segments_received_inline": ("received", "inline"),
            "segments_received_eager": ("received", "eager"),
            "segments_received_pushed": ("received", "pushed"),
            "segments_received_mapped": ("received", "mapped"),
            "segments_received_read": ("received", "read"),
        },
        ("direction", "protocol"),
    ),
    _plain("link_eager_frames", "counter", "Frames that were copied and sent at once.",
           "frames_sent_eager"),
    Measure(
        "link_chunks",
        "counter",
        "Pieces of segments that were too large for one send.",
        {"chunks_sent": ("sent",), "chunks_received": ("received",)},
        ("direction",),
    ),
    _plain("link_unshared_segments", "counter", "Segments in the arena that were pushed, because "
           "their slab could not be shared.", "segments_sent_unshared"),
    Measure(
        "link_unmappable_segments",
        "counter",
        "Segments in shared memory whose receiver had no means to map them; it gets copies then.",
        {"segments_sent_unmappable": ("sent",), "segments_unmappable": ("received",)},
        ("direction",),
    ),
    Measure(
        "link_reads",
        "counter",
        "Chunks that were offered to the peer, and chunks that this end has read.",
        {"ready_to_sends": ("sent",), "reads": ("received",)},
        ("direction",),
    ),
    _plain("link_read_bytes", "counter", "Bytes that this end has read from the peer's memory.",
           "read_bytes"),
    _plain("link_reads_pending", "gauge", "Chunks that this end is reading, or is about to.",
           "reads_pending"),
    Measure(
        "link_read_buffers",
        "counter",
        "Segments that were read, by where they landed.",
        {"read_buffers_arena": ("arena",), "read_buffers_pool": ("pool",)},
        ("memory",),
    ),
    _plain("link_registrations", "gauge", "Slabs that the device of the link knows.",
           "registrations"),
    _plain("link_fetch_registrations", "counter", "Buffers that the device was told of for one "
           "read.", "fetch_registrations"),
    _plain("link_refused_messages", "counter", "Messages that were larger than this end accepts.",
           "messages_refused"),
    _plain("link_calls", "gauge", "Calls that have not ended.", "calls"),
    _plain("link_dropped_calls", "counter", "Calls that nobody waited for any more when their turn "
           "came: they were not run.", "calls_dropped"),
    _plain("link_crowded_segments", "counter", "Segments that were pushed, because the arena had "
           "no room or no lease for them.", "segments_sent_crowded"),
    _plain("link_backlog_bytes", "gauge", "Bytes that wait for the peer to take them, and nobody "
           "waits for.", "backlog_bytes"),
    _plain("link_refused_calls", "counter", "Calls that came while too many others of their link "
           "waited.", "calls_refused"),
    _plain("link_waiting_calls", "gauge", "Calls that nobody has begun to serve, beyond those that "
           "workers find ready.", "calls_waiting"),
    _plain("link_copies", "counter", "Payloads that were copied into the arena before they left.",
           "copies"),
    _plain("link_copied_bytes", "counter", "Bytes that were copied into the arena.",
           "copied_bytes"),
    _plain("link_leased_bytes", "gauge", "Memory of this process that the peer may be reading.",
           "leased_bytes"),
    _plain("link_leases", "gauge", "Segments of this process that the peer may be reading.",
           "leases"),
    _plain("link_views", "gauge", "Segments of the peer that this process may be reading.",
           "views"),
    _plain("link_spins", "counter", "Waits that ended while spinning.", "spins"),
    _plain("link_sleeps", "counter", "Waits that had to sleep.", "sleeps"),
    _plain("link_background_wakes", "counter", "Times that the background thread served the link.",
           "background_wakes"),
)  # fmt: skip

MEMORY: tuple[Measure, ...] = (
    _plain("arena_capacity_bytes", "gauge", "Most memory that the arena may hold.", "capacity"),
    _plain("arena_reserved_bytes", "gauge", "Address space of the arena.", "reserved"),
    _plain(
        "arena_wanted_bytes",
        "gauge",
        "The least capacity, as a power of two, that would have "
        "spared the copies made so far for want of room; 0: none were made.",
        "wanted",
    ),
    _plain("arena_resident_bytes", "gauge", "Memory that the arena holds.", "resident"),
    _plain("arena_high_water_bytes", "gauge", "The most that the arena has held.", "high_water"),
    _plain("arena_used_bytes", "gauge", "Memory in blocks that are alive.", "used"),
    _plain("arena_leased_bytes", "gauge", "Memory that other processes may be reading.", "leased"),
    _plain("arena_slabs", "gauge", "Pieces of shared memory in the arena.", "slabs"),
    _plain("arena_blocks", "gauge", "Blocks that are alive.", "blocks"),
    _plain("pool_used_bytes", "gauge", "Received memory that is in use.", "pool_used"),
    _plain("pool_idle_bytes", "gauge", "Memory kept for what is received next.", "pool_idle"),
    _plain(
        "pool_posted_bytes", "gauge", "Memory made ready for the bytes of a message.", "pool_posted"
    ),
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
    sums: dict[Labels, Counter[str]] = field(default_factory=dict)

    def add(self, role: str, peer: str, stats: Facts) -> None:
        transport = str(stats["transport"])
        self.links[role, transport] += 1
        sums = self.sums.setdefault((role, transport, peer), Counter())
        for fact, value in flat(stats):
            if isinstance(value, int):
                sums[fact] += value


def host(address: str) -> str:
    """``ipv4:10.0.0.7:4242`` without the port; ``unix:`` as it is."""
    scheme, _, rest = address.partition(":")
    return f"{scheme}:{rest.rpartition(':')[0]}" if rest else address


def flat(stats: Facts) -> Iterator[tuple[str, object]]:
    """``{"a": 1, "b": {"c": 2}}`` as ``("a", 1)``, ``("b.c", 2)``."""
    for name, value in stats.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", found) for inner, found in flat(value))
        else:
            yield name, value


class LinkCollector(Collector):
    """What ``register`` registers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[tuple[str, Labels], Series] = {}

    def describe(self) -> Iterator[Metric]:
        for measure in LINK:
            yield measure.family(LINK_LABELS)
        for measure in (*MEMORY, LINKS, CHANNELS, LOST, FAILED, INCIDENTS):
            yield measure.family()

    def collect(self) -> Iterator[Metric]:
        import tensorwire
        from tensorwire.observe import audit
        from tensorwire.rpc import registry

        totals = Totals()
        transports: Counter[str] = Counter()
        for channel in registry.CHANNELS.members():
            stats = channel.stats()
            transports[str(stats["transport"] or "")] += 1
            link = stats["link"]
            if isinstance(link, dict):
                totals.add("client", str(stats["target"]), link)
        for server in registry.SERVERS.members():
            for link in server.stats():
                totals.add("server", host(str(link["peer"])), link)
        yield from self._links(totals)
        yield from self._memory(tensorwire.arena_stats())
        family = LINKS.family()
        for labels, count in totals.links.items():
            family.add_metric(labels, count)
        yield family
        counted: list[tuple[Measure, Mapping[str, int]]] = [
            (CHANNELS, transports),
            (LOST, registry.LOST.counts()),
            (FAILED, registry.FAILED.counts()),
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

    def _links(self, totals: Totals) -> Iterator[Metric]:
        with self._lock:
            gone = [key for key in self._series if key[1] not in totals.sums]
            for key in gone:
                del self._series[key]
            for measure in LINK:
                family = measure.family(LINK_LABELS)
                for labels, sums in totals.sums.items():
                    for fact, values in measure.facts.items():
                        value: float = sums[fact]
                        if measure.kind == "counter":
                            series = self._series.setdefault((fact, labels), Series())
                            value = series.follow(value)
                        family.add_metric([*labels, *values], value)
                yield family

    def _memory(self, stats: Facts) -> Iterator[Metric]:
        for measure in MEMORY:
            family = measure.family()
            for fact in measure.facts:
                value = stats[fact]
                assert isinstance(value, int)
                family.add_metric([], value)
            yield family


_registered: Final[WeakKeyDictionary[CollectorRegistry, LinkCollector]] = WeakKeyDictionary()


def register(registry: CollectorRegistry = REGISTRY) -> LinkCollector:
    """Adds the metrics to a Prometheus registry; ``registry.unregister`` takes them out again.

    Where they are in it already, the same collector is returned. Raises ValueError when others have
    taken their names.
    """
    collector = LinkCollector()
    try:
        registry.register(collector)
    except ValueError:
        if registry not in _registered:
            raise
        return _registered[registry]
    _registered[registry] = collector
    return collector
