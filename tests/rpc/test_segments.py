# SPDX-License-Identifier: Apache-2.0
"""Messages of several segments, over the data plane and joined over gRPC."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest
from tests.rpc.pairings import PAIRINGS, Pairing, local
from tests.rpc.service import path

from tensorwire.rpc import payload, segments

OURS = [pairing for pairing in PAIRINGS if pairing.client == pairing.server == "tensorwire"]


def sizes(buffers: list[Any]) -> bytes:
    return ",".join(str(len(memoryview(buffer).cast("B"))) for buffer in buffers).encode()


unary_unary: Any = grpc.unary_unary_rpc_method_handler
unary_stream: Any = grpc.unary_stream_rpc_method_handler
stream_unary: Any = grpc.stream_unary_rpc_method_handler

HANDLERS = grpc.method_handlers_generic_handler(
    "test.Segments",
    {
        "Sizes": unary_unary(
            lambda request, context: request, request_deserializer=segments(sizes)
        ),
        "AllSizes": stream_unary(
            lambda requests, context: b";".join(requests), request_deserializer=segments(sizes)
        ),
        "Split": unary_unary(
            lambda request, context: request,
            response_serializer=lambda data: (data[:1], data[1:3], data[3:]),
        ),
        "Splits": unary_stream(
            lambda request, context: iter([request, request]),
            response_serializer=lambda data: [data[:1], data[1:]],
        ),
    },
)


@pytest.fixture(params=OURS, ids=str)
def channel(request: pytest.FixtureRequest) -> Any:
    pairing: Pairing = request.param
    with (
        local("tensorwire", handlers=[HANDLERS]) as server,
        pairing.channel(server.target) as channel,
    ):
        channel.pairing = pairing
        yield channel


def expected(channel: Any, parts: list[int]) -> bytes:
    """What ``Sizes`` answers: gRPC knows no segments."""
    over_grpc = channel.pairing.transport == "grpc"
    return ",".join(map(str, [sum(parts)] if over_grpc else parts)).encode()


@pytest.mark.parametrize(
    "parts", [[1], [1, 2, 3], [5, 0, 7], [100_000, 8, 3_000_000], [10] * 200, []]
)
def test_segments_of_a_request(channel: Any, parts: list[int]) -> None:
    method = channel.unary_unary(
        "/test.Segments/Sizes", request_serializer=lambda counts: [bytes(n) for n in counts]
    )
    assert method(parts) == expected(channel, parts)
    assert method.future(parts).result() == expected(channel, parts)


def test_kinds_of_buffers(channel: Any) -> None:
    array = np.arange(6, dtype=np.float64).reshape(2, 3)
    parts = (array, memoryview(b"abc"), bytearray(b"de"), b"f")
    method = channel.unary_unary("/test.Segments/Sizes")
    assert method(parts) == expected(channel, [48, 3, 2, 1])
    echo = channel.unary_unary(path("echo"))
    assert echo(array) == array.tobytes()
    assert echo(bytearray(b"one")) == b"one"
    assert echo(parts) == array.tobytes() + b"abcdef"


def test_strided_array_is_refused(channel: Any) -> None:
    echo = channel.unary_unary(path("echo"))
    with pytest.raises((BufferError, ValueError, grpc.RpcError)):
        echo(np.arange(10)[::2])
    assert echo(b"x") == b"x"


@pytest.mark.parametrize("count", [1, 9])
def test_what_comes_before_a_segment_that_is_none_is_its_owners_again(
    channel: Any, count: int
) -> None:
    method = channel.unary_unary("/test.Segments/Sizes")
    before = [bytearray(b"abc") for _ in range(count)]
    with pytest.raises((TypeError, grpc.RpcError)):
        method([*before, "text"])
    for each in before:
        each.append(0)  # BufferError while anything holds its memory
    assert method(before) == expected(channel, [4] * count)


def test_segments_of_streamed_requests(channel: Any) -> None:
    method = channel.stream_unary("/test.Segments/AllSizes")
    requests = [[b"a", b"bc"], b"def", [b""]]
    assert method(iter(requests)) == b";".join(
        [expected(channel, [1, 2]), expected(channel, [3]), expected(channel, [0])]
    )


def test_segments_of_responses(channel: Any) -> None:
    lengths = segments(lambda buffers: [len(memoryview(buffer)) for buffer in buffers])
    over_grpc = channel.pairing.transport == "grpc"
    method = channel.unary_unary("/test.Segments/Split", response_deserializer=lengths)
    assert method(b"abcdef") == ([6] if over_grpc else [1, 2, 3])
    assert method.with_call(b"abcdef")[0] == ([6] if over_grpc else [1, 2, 3])
    assert method.future(b"abcdef").result() == ([6] if over_grpc else [1, 2, 3])
    stream = channel.unary_stream("/test.Segments/Splits", response_deserializer=lengths)
    assert list(stream(b"abc")) == [[3] if over_grpc else [1, 2]] * 2


def test_unmarked_deserializers_get_bytes(channel: Any) -> None:
    seen: list[type] = []

    def note(data: bytes) -> bytes:
        seen.append(type(data))
        return data

    assert channel.unary_unary("/test.Segments/Split", response_deserializer=note)(b"abc") == b"abc"
    assert channel.unary_unary("/test.Segments/Split")(b"abc") == b"abc"
    assert list(channel.unary_stream("/test.Segments/Splits")(b"abc")) == [b"abc"] * 2
    assert seen == [bytes]


def test_received_buffers_outlive_call_and_channel(channel: Any) -> None:
    keep = segments(list)
    data = bytes(range(256)) * 4000
    buffers = channel.unary_unary(path("echo"), response_deserializer=keep)(data)
    channel.close()
    assert b"".join(buffers) == data


def test_mark() -> None:
    class Decoder:
        def decode(self, buffers: list[Any]) -> int:
            return len(buffers)

    @segments
    def function(buffers: list[Any]) -> int:
        return len(buffers)

    assert payload.takes_segments(function)
    assert payload.takes_segments(segments(Decoder().decode))
    assert segments(Decoder().decode)([1, 2]) == 2
    assert payload.takes_segments(segments(len))
    assert not payload.takes_segments(None)
    assert not payload.takes_segments(Decoder().decode)


def test_join() -> None:
    data = b"the same object"
    assert payload.join(data) is data
    assert payload.join([b"a", memoryview(b"b"), np.zeros(2, np.uint8)]) == b"ab\0\0"
    assert payload.join(()) == b""
    assert payload.join(None) is None
    with pytest.raises(TypeError):
        payload.join(5)
