# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: complete, declared, and never falling."""

from __future__ import annotations

import gc
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.forked import inherited

import tensorwire
from tensorwire import _core, queue, remote, weights
from tensorwire.collective import join
from tensorwire.observe import metrics
from tensorwire.observe.measure import Labels, Measure
from tensorwire.remote import Rights
from tensorwire.rpc import registry

SERVED = {"role": "server", "peer": "unix:"}


@pytest.fixture(autouse=True)
def alone() -> None:
    """Whatever other tests have left behind is not counted."""
    registry.CHANNELS.forget()
    registry.SERVERS.forget()
    for watch in registry.WATCHES:
        watch.members.forget()


@pytest.fixture
def prometheus() -> CollectorRegistry:
    found = CollectorRegistry()
    metrics.register(found)
    return found


@pytest.fixture
def target() -> Iterator[str]:
    handler = grpc.method_handlers_generic_handler(
        "test", {"Take": grpc.unary_unary_rpc_method_handler(lambda request, context: b"")}
    )
    server = tensorwire.server(ThreadPoolExecutor(2), [handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def labels_of(target: str) -> dict[str, str]:
    return {"role": "client", "transport": "shm", "peer": target}


def send(channel: grpc.Channel, nbytes: int) -> None:
    take: Any = channel.unary_unary("/test/Take")
    take(np.ones(nbytes, np.uint8))


def test_messages_are_counted_at_both_ends(prometheus: CollectorRegistry, target: str) -> None:
    with tensorwire.insecure_channel(target, transport="shm") as channel:
        for nbytes in (100, 100, 100_000):
            send(channel, nbytes)

        def messages(direction: str, upto: str, **labels: str) -> float | None:
            return prometheus.get_sample_value(
                "tensorwire_link_messages_total",
                {**labels_of(target), **labels, "direction": direction, "upto": upto},
            )

        assert messages("sent", "256") == 2
        assert messages("sent", "1048576") == 1
        assert messages("received", "256") == 3
        assert messages("received", "256", **SERVED) == 2
        assert messages("received", "1048576", **SERVED) == 1
        value = prometheus.get_sample_value
        assert value("tensorwire_link_copies_total", labels_of(target)) == 1
        assert value("tensorwire_link_copied_bytes_total", labels_of(target)) == 100_000
        assert value("tensorwire_links", {"role": "client", "transport": "shm"}) == 1
        assert value("tensorwire_links", {"role": "server", "transport": "shm"}) == 1
        assert value("tensorwire_channels", {"transport": "shm"}) == 1
    assert value("tensorwire_channels", {"transport": "shm"}) is None


def test_links_that_failed_or_were_lost(prometheus: CollectorRegistry) -> None:
    def value(name: str) -> float:
        return prometheus.get_sample_value(name, {"transport": "verbs"}) or 0.0

    names = ("tensorwire_links_lost_total", "tensorwire_links_failed_total")
    before = [value(name) for name in names]
    registry.LOST.get().count("verbs")
    registry.FAILED.get().count("verbs")
    registry.FAILED.get().count("verbs")
    assert [value(name) for name in names] == [before[0] + 1, before[1] + 2]


def test_channels_without_a_link(prometheus: CollectorRegistry) -> None:
    with tensorwire.insecure_channel("127.0.0.1:9"):
        assert prometheus.get_sample_value("tensorwire_channels", {"transport": ""}) == 1


def test_labels_hold_no_port_of_a_client(prometheus: CollectorRegistry, target: str) -> None:
    """A label with another value for each link would make a time series for each."""
    with tensorwire.insecure_channel(target, transport="tcp") as channel:
        send(channel, 8)
        text = generate_latest(prometheus).decode()
    peers = {
        sample.labels["peer"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "peer" in sample.labels
    }
    assert peers == {target, "ipv4:127.0.0.1"}
    assert metrics.host("ipv6:[2001:db8::7]:4242") == "ipv6:[2001:db8::7]"


def test_incidents(prometheus: CollectorRegistry) -> None:
    def value() -> float:
        found = prometheus.get_sample_value(
            "tensorwire_incidents_total", {"kind": "handshake", "reason": "garbage"}
        )
        assert found is not None
        return found

    before = value()
    core = _core.Server(1 << 20)
    with ThreadPoolExecutor(1) as pool:
        port = core.listen_tcp("127.0.0.1", 0)
        serving = pool.submit(core.next)
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"x" * 200)
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        core.close()
        assert serving.result() is None
    assert value() == before + 1


def test_the_arena(prometheus: CollectorRegistry) -> None:
    def used() -> float:
        value = prometheus.get_sample_value("tensorwire_arena_used_bytes")
        assert value is not None
        return value

    before = used()
    array = tensorwire.empty(1 << 18)
    assert used() == before + array.nbytes
    assert (
        prometheus.get_sample_value("tensorwire_arena_capacity_bytes")
        == (tensorwire.arena_stats()["capacity"])
    )


def test_every_statistic_of_a_link_is_a_metric(target: str) -> None:
    with tensorwire.insecure_channel(target, transport="shm") as channel:
        send(channel, 8)
        link = channel.stats()["link"]
        assert isinstance(link, dict)
    counters = _core.link_counters()
    assert {name for name, value in link.items() if isinstance(value, int)} == {
        counter["name"] for counter in counters
    }
    assert {name for counted in link["classes"].values() for name in counted} == {
        counter["name"] for counter in counters if counter["by_size"]
    }
    assert list(link["classes"]) == ["256", "4096", "65536", "1048576", "16777216", "inf"]
    assert sum(len(measure.facts) for measure in metrics.link()) == len(counters)


def test_declarations_agree() -> None:
    """Numbers of one metric differ in the values of their labels alone."""
    for counters in (_core.link_counters(), _core.memory_counters()):
        assert len({counter["name"] for counter in counters}) == len(counters)
        first: dict[str, _core.Counter] = {}
        for counter in counters:
            other = first.setdefault(counter["metric"], counter)
            for key in ("unit", "kind", "help", "by_size"):
                assert counter[key] == other[key]
            assert counter["labels"].keys() == other["labels"].keys()
            assert counter is other or counter["labels"] != other["labels"]
            assert (counter["unit"] == "bytes") == counter["metric"].endswith("_bytes")


def test_every_statistic_of_the_arena_is_a_metric() -> None:
    declared = {fact for measure in metrics.memory() for fact in measure.facts}
    assert declared == set(tensorwire.arena_stats())


def test_every_number_of_what_is_built_on_links_is_in_a_metric() -> None:
    kinds = {queue.Stats, remote.HostStats, weights.PublicationStats}
    assert {watch.numbers for watch in registry.WATCHES} == kinds
    for watch in registry.WATCHES:
        found = [fact for measure in watch.measures for fact in measure.facts]
        assert sorted(found) == sorted(watch.numbers.__annotations__), watch.numbers


def test_names_units_and_help(prometheus: CollectorRegistry, target: str) -> None:
    with tensorwire.insecure_channel(target, transport="tcp") as channel:
        send(channel, 8)
        text = generate_latest(prometheus).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    measures = [*metrics.link(), *metrics.memory(), metrics.LINKS, metrics.CHANNELS]
    measures += [metrics.LOST, metrics.FAILED, metrics.INCIDENTS]
    measures += [metrics.OPERATIONS, metrics.OPERATION_BYTES]
    measures += [measure for watch in registry.WATCHES for measure in watch.measures]
    assert set(families) == {f"tensorwire_{measure.name}" for measure in measures}
    for measure in measures:
        family = families[f"tensorwire_{measure.name}"]
        assert (family.type, family.documentation) == (measure.kind, measure.help)
        assert measure.help.endswith(".")
        labels = {(s.name, *sorted(s.labels.items())) for s in family.samples}
        assert len(labels) == len(family.samples), "two samples with the same labels"


def test_the_documentation_lists_every_metric() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    others = (metrics.LINKS, metrics.CHANNELS, metrics.LOST, metrics.FAILED, metrics.INCIDENTS)
    groups = (metrics.OPERATIONS, metrics.OPERATION_BYTES)
    every: list[tuple[Labels, Measure]] = [
        ((), measure) for measure in (*metrics.link(), *others, *groups, *metrics.memory())
    ]
    every += [(watch.labels, measure) for watch in registry.WATCHES for measure in watch.measures]
    rows = []
    for labels_before, measure in every:
        name = f"tensorwire_{measure.name}" + ("_total" if measure.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in (*labels_before, *measure.labels))
        rows.append(f"| `{name}` | {measure.kind} | {labels} | {measure.help} |")
    assert sorted(re.findall(r"^\| `tensorwire_.*$", text, re.MULTILINE)) == sorted(rows)


def test_the_documentation_lists_every_incident() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    found, kind = set(), ""
    for row in re.finditer(r"^\| (?:`(\w+)`)? ?\| `(\w+)` \| .*\|$", text, re.MULTILINE):
        kind = row[1] or kind
        found.add((kind, row[2]))
    assert found == set(_core.incidents())


def test_a_registry_has_them_once(prometheus: CollectorRegistry) -> None:
    first = metrics.register(prometheus)
    assert metrics.register(prometheus) is first
    prometheus.unregister(first)
    second = metrics.register(prometheus)
    assert second is not first
    assert metrics.register(prometheus) is second


def test_two_threads_that_register_get_one_collector() -> None:
    class Registry(CollectorRegistry):
        other: threading.Thread | None = None

        def register(self, collector: Any) -> None:
            super().register(collector)
            if self.other is None:  # registered, and nobody knows with what
                self.other = threading.Thread(target=lambda: found.append(metrics.register(both)))
                self.other.start()
                self.other.join(0.2)

    found: list[metrics.LinkCollector] = []
    both = Registry()
    mine = metrics.register(both)
    assert both.other is not None
    both.other.join()
    assert found == [mine]


def test_names_that_others_have_taken() -> None:
    taken = CollectorRegistry()
    Gauge("tensorwire_links", "not ours", registry=taken)
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.register(taken)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ([0, 5, 9], [0, 5, 9]),
        # Of 100 + 50 the first link ends; the other one goes on to 60.
        ([150, 50, 60], [150, 150, 160]),
        ([150, 80, 81, 0, 4], [150, 150, 151, 151, 155]),
    ],
)
def test_counters_never_fall(found: list[float], shown: list[float]) -> None:
    series = metrics.Series()
    assert [series.follow(value) for value in found] == shown


def test_links_with_the_same_labels_are_added_up(
    prometheus: CollectorRegistry, target: str
) -> None:
    def sent() -> float | None:
        return prometheus.get_sample_value(
            "tensorwire_link_messages_total",
            {**labels_of(target), "direction": "sent", "upto": "256"},
        )

    with tensorwire.insecure_channel(target, transport="shm") as first:
        with tensorwire.insecure_channel(target, transport="shm") as second:
            send(first, 8)
            send(second, 8)
            send(second, 8)
            assert sent() == 3
        assert sent() == 3
        send(first, 8)
        assert sent() == 4
    assert sent() is None


def test_who_scrapes_second_is_not_taken_for_an_end(
    prometheus: CollectorRegistry, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One scrape has read the statistics, and is held up while another one reads them."""
    labels = {**labels_of(target), "direction": "sent", "upto": "256"}

    def sent() -> float | None:
        return prometheus.get_sample_value("tensorwire_link_messages_total", labels)

    class Held(metrics.Totals):
        def __init__(self) -> None:
            super().__init__()
            self.first = not held

        def add(self, role: str, peer: str, stats: metrics.Facts) -> None:
            super().add(role, peer, stats)
            if self.first and not held and role == "client":
                held.append(threading.Thread(target=scrape))
                send(channel, 8)
                held[0].start()
                # The other one waits for this one, or has been through before.
                held[0].join(0.2)

    def scrape() -> None:
        generate_latest(prometheus)

    held: list[threading.Thread] = []
    with tensorwire.insecure_channel(target, transport="shm") as channel:
        send(channel, 8)
        monkeypatch.setattr(metrics, "Totals", Held)
        scrape()
        held[0].join()
        assert sent() == 2


def test_a_scrape_that_stops_half_way_holds_up_no_other(prometheus: CollectorRegistry) -> None:
    collector = metrics.register(prometheus)
    first = collector.collect()
    next(first)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: [*collector.collect()]).result(30)


def test_a_child_that_is_forked_in_a_scrape_scrapes(
    prometheus: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent's thread holds the lock; and one that registers holds another."""
    began, over = threading.Event(), threading.Event()

    def statistics() -> list[Any]:
        if threading.current_thread() is scraping:
            began.set()
            assert over.wait(60)
        return []

    def scrape() -> None:
        generate_latest(prometheus)

    def register() -> None:
        metrics.register(CollectorRegistry())

    monkeypatch.setattr(_core, "group_statistics", statistics)
    scraping = threading.Thread(target=scrape)
    scraping.start()
    try:
        assert began.wait(60)
        with metrics._registering.get():
            # A child that hangs ends, and has said nothing.
            assert inherited(lambda: signal.alarm(20), scrape, register) == [""] * 3
    finally:
        over.set()
        scraping.join()


def test_nothing_is_kept_alive() -> None:
    channel = tensorwire.insecure_channel("127.0.0.1:9")
    assert registry.CHANNELS.get().members() == [channel]
    del channel
    gc.collect()
    assert registry.CHANNELS.get().members() == []


def test_a_child_begins_without_the_parents_channels() -> None:
    program = (
        "import os, tensorwire\n"
        "from tensorwire.rpc import registry\n"
        "channel = tensorwire.insecure_channel('127.0.0.1:9')\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(len(registry.CHANNELS.get().members()))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "
        "len(registry.CHANNELS.get().members()))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stdout.split() == [b"0", b"1"]


def test_operations_of_groups_are_added_up(prometheus: CollectorRegistry, tmp_path: Path) -> None:
    metrics.register(prometheus)

    def count(name: str) -> float:
        labels = {"operation": "all_gather", "way": "one_step"}
        return prometheus.get_sample_value(f"tensorwire_group_{name}_total", labels) or 0.0

    before = count("operations"), count("bytes")

    def work(rank: int) -> None:
        with join(tmp_path, rank, 2) as group:
            group.all_gather(np.zeros(10, np.float32))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    assert (count("operations"), count("bytes")) == (before[0] + 2, before[1] + 80)


@contextmanager
def servers_of(count: int) -> Iterator[list[tensorwire.Server]]:
    """That are never started."""
    with ThreadPoolExecutor(1) as pool:
        servers = [tensorwire.server(pool) for _ in range(count)]
        yield servers
        for server in servers:
            server.stop(None)


def test_numbers_of_a_queue(prometheus: CollectorRegistry) -> None:
    def value(name: str, **labels: str) -> float | None:
        return prometheus.get_sample_value(f"tensorwire_queue_{name}", {"queue": "seen", **labels})

    with servers_of(2) as (first, second):
        one = queue.serve(first, "seen", capacity=4, capacity_bytes=1 << 20)
        for number in range(3):
            one.put(number)
        one.get()
        assert (value("items"), value("accepted_items_total")) == (2, 3)
        assert value("ended_items_total", outcome="delivered") == 1
        assert value("bytes") == one.stats().nbytes > 0
        # Of another server: they are added up, and a counter does not fall when one is gone.
        other = queue.serve(second, "seen", capacity=4, capacity_bytes=1 << 20)
        other.put(4)
        assert (value("items"), value("accepted_items_total")) == (3, 4)
        one.close(drain=False)
        assert value("ended_items_total", outcome="discarded") == 2


def test_numbers_of_a_host_of_memory(prometheus: CollectorRegistry) -> None:
    def value(name: str) -> float | None:
        return prometheus.get_sample_value(f"tensorwire_{name}")

    before = value("shared_used_bytes")
    assert before is not None
    with servers_of(1) as (server,):
        assert value("remote_tensors") is None
        with remote.host(server, may_allocate=True, budget=1 << 20) as host:
            host.empty((4, 4), "float64", rights=Rights.READ)
            host.expose(np.zeros(2), rights=Rights.READ)
            assert (value("remote_tensors"), value("remote_tensor_bytes")) == (2, 144)
            assert (value("remote_budget_bytes"), value("remote_allocated_bytes")) == (1 << 20, 0)
            used = value("shared_used_bytes")
            assert used is not None
            assert used >= before + 128
        assert value("remote_tensors") is None


def test_numbers_of_a_publication(prometheus: CollectorRegistry) -> None:
    def value(name: str) -> float | None:
        return prometheus.get_sample_value(f"tensorwire_weights_{name}", {"publication": "weights"})

    with servers_of(1) as (server,):
        with weights.Publisher({"w": np.ones(5000)}, server, quota=1 << 20) as publisher:
            publisher.publish(7)
            assert (value("version"), value("versions"), value("version_bytes")) == (7, 1, 40_000)
            assert (value("quota_bytes"), value("leased_bytes")) == (1 << 20, 0)
            assert value("copied_packs_total") == value("outside_versions_total") == 0
        assert value("version") is None
