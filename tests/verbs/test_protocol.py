# SPDX-License-Identifier: Apache-2.0
"""What goes over the wire for messages of every size: the protocol steps of real processes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from tests.verbs.processes import Linked, Trace, linked

KB, MB = 1 << 10, 1 << 20
COALESCE, EAGER, CHUNK = 8 * KB, 16 * KB, 4 * MB  # the defaults


def edges(threshold: int) -> list[int]:
    return [threshold - 1, threshold, threshold + 1]


@pytest.fixture(scope="module")
def default() -> Iterator[Linked]:
    with linked() as link:
        yield link


@pytest.fixture(scope="module")
def uncoalesced() -> Iterator[Linked]:
    off = {"TENSORWIRE_COALESCE_BYTES": "0"}
    with linked(off, off) as link:
        yield link


@pytest.fixture(scope="module")
def small() -> Iterator[Linked]:
    """The thresholds of the client are others; two of them have the names of RDMA-TensorFlow."""
    settings = {
        "TF_RDMA_ACC_SIZE": str(1 * KB),
        "TENSORWIRE_EAGER_BYTES": str(5 * KB),
        "TF_RDMA_CHUNK_SIZE": str(64 * KB),
    }
    with linked(settings) as link:
        yield link


def traced(link: Linked, sizes: list[int], memory: str = "arena") -> tuple[Trace, Trace]:
    """The steps of one call with segments of these sizes, as client and server saw them."""
    for agent in (link.client, link.server):
        agent.do("keep_trace")
    said = link.client.do("check", link=link.link, sizes=sizes, memory=memory)
    assert said == {"code": 0, "details": "", "bad": []}
    (server,) = link.server.do("server_traces")
    return link.client.trace(link.link), Trace(server)


def assert_eager(client: Trace, server: Trace, sends: list[int]) -> None:
    assert client.eager("sent") == server.eager("received") == sends
    assert client.count("sent", "RTS") == server.count("sent", "READ") == 0


def assert_read(client: Trace, server: Trace, chunks: list[int]) -> None:
    """One RTS, one READ and one FIN for each chunk."""
    assert client.sizes("sent", "RTS") == chunks
    assert server.sizes("received", "RTS") == chunks
    assert sorted(server.sizes("sent", "READ")) == sorted(chunks)
    assert server.count("received", "READ_DONE") == len(chunks)
    announced = {step.id for step in client.steps if step.name == "RTS"}
    assert {step.id for step in server.steps if step.name == "FIN"} == announced
    assert {step.id for step in client.steps if step.name == "FIN"} == announced
    assert client.count("received", "FIN") == len(chunks)
    assert client.count("sent", "DATA") == 0


def chunks_of(size: int, chunk: int) -> list[int]:
    whole, rest = divmod(size, chunk)
    return [chunk] * whole + [rest] * (rest > 0)


@pytest.mark.parametrize("size", [1, 10, 1 * KB, *edges(COALESCE), *edges(EAGER)[:2]])
@pytest.mark.parametrize("coalescing", [True, False])
def test_up_to_16_kb_one_eager_send(
    default: Linked, uncoalesced: Linked, coalescing: bool, size: int
) -> None:
    assert_eager(*traced(default if coalescing else uncoalesced, [size]), [size])


@pytest.mark.parametrize(
    "size", [EAGER + 1, 100_000, *edges(CHUNK), *edges(2 * CHUNK), 10 * MB, 64 * MB]
)
@pytest.mark.parametrize("coalescing", [True, False])
def test_above_it_one_read_for_each_chunk(
    default: Linked, uncoalesced: Linked, coalescing: bool, size: int
) -> None:
    client, server = traced(default if coalescing else uncoalesced, [size])
    assert_read(client, server, chunks_of(size, CHUNK))
    assert client.eager("sent") == []
    if size > CHUNK:
        assert server.most_in_flight() > 1


def test_100_segments_of_10_bytes_are_one_send(default: Linked) -> None:
    traced(default, [10])  # what a new link has to tell is told
    client, server = traced(default, [10] * 100)
    assert_eager(client, server, [1000])
    assert client.count("sent", "SEND") == 1


def test_10_mb_are_3_ready_to_sends_3_reads_and_3_fins(default: Linked) -> None:
    client, server = traced(default, [10 * MB])
    assert client.count("sent", "RTS") == 3
    assert server.count("sent", "READ") == 3
    assert server.count("sent", "FIN") == 3
    assert server.most_in_flight() > 1


def test_without_coalescing_each_segment_is_sent_alone(uncoalesced: Linked) -> None:
    assert_eager(*traced(uncoalesced, [10] * 100), [10] * 100)


def test_segments_are_gathered_up_to_8_kb(default: Linked) -> None:
    assert_eager(*traced(default, [4 * KB, 4 * KB]), [8 * KB])
    assert_eager(*traced(default, [4 * KB, 4 * KB + 1]), [4 * KB, 4 * KB + 1])
    assert_eager(*traced(default, [10, EAGER, 10]), [10, EAGER, 10])


def test_one_message_by_both_protocols(default: Linked) -> None:
    """Large segments end a gathering; ``traced`` has compared each segment in its place."""
    client, server = traced(default, [10, 5 * MB, 10, 10, 100_000, EAGER])
    assert client.eager("sent") == server.eager("received") == [10, 20, EAGER]
    assert_read(client, server, [CHUNK, 1 * MB, 100_000])
    assert [step.segment for step in client.steps if step.name == "RTS"] == [1, 1, 4]


@pytest.mark.parametrize("size", edges(5 * KB))
def test_eager_threshold_by_the_environment(small: Linked, size: int) -> None:
    client, server = traced(small, [size])
    if size <= 5 * KB:
        assert_eager(client, server, [size])
    else:
        assert_read(client, server, [size])


@pytest.mark.parametrize("size", [*edges(64 * KB), 1 * MB])
def test_chunk_size_by_the_environment(small: Linked, size: int) -> None:
    client, server = traced(small, [size])
    assert_read(client, server, chunks_of(size, 64 * KB))
    assert client.count("sent", "RTS") == math.ceil(size / (64 * KB))


def test_coalescing_by_the_environment(small: Linked) -> None:
    assert_eager(*traced(small, [100] * 20), [1000, 1000])


@pytest.mark.parametrize("memory", ["arena", "heap"])
def test_copies(default: Linked, memory: str) -> None:
    """None for a tensor of the arena, at either end; one for ordinary memory."""
    client, server = default.client, default.server
    before = client.do("stats", link=default.link), server.do("server_stats")[0]
    traced(default, [3 * MB], memory)
    after = client.do("stats", link=default.link), server.do("server_stats")[0]
    assert after[0]["copies"] - before[0]["copies"] == (memory == "heap")
    assert after[1]["copies"] == before[1]["copies"]
    assert after[1]["read_buffers_pool"] == before[1]["read_buffers_pool"]
