# SPDX-License-Identifier: Apache-2.0
"""What the codec makes of any bytes is what protobuf makes of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.protobuf.conftest import Generated

from tensorwire.protobuf import wire
from tensorwire.protobuf.attached import Attached
from tensorwire.protobuf.codec import Codec, _Deserializer

QUICK = settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def deserializer(kind: Any, least: int, views: bool | tuple[str, ...] = True) -> _Deserializer:
    made = Codec(views, segments=True).deserializer(kind.FromString)
    assert isinstance(made, _Deserializer)
    made._least = least
    return made


def outcome(function: Callable[[], Any]) -> object:
    try:
        message = function()
    except (DecodeError, UnicodeDecodeError):
        return "refused"
    return message.SerializePartialToString(deterministic=True)


def check(kind: Any, data: bytes, cuts: list[int], least: int) -> Any:
    """The message as attached, or None where protobuf refuses it."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    segments = [data[a:b] for a, b in pairwise(edges)]
    expected = outcome(lambda: kind.FromString(data))
    attached: Any = None

    def decode() -> Any:
        nonlocal attached
        attached = deserializer(kind, least)(segments)
        return attached.plain()

    assert outcome(decode) == expected
    return attached


# Fields as they might come: known ones of every kind, unknown ones, and such of a wrong wire type.
small = st.binary(max_size=6)
numbers = st.integers(1, 17)


def framed(number: int, data: bytes) -> bytes:
    return wire.varint(number << 3 | wire.BYTES) + wire.varint(len(data)) + data


def with_key(key: bytes, value: bytes) -> bytes:
    return key + framed(2, value)


keys = st.sampled_from([b"", b"\x08\x02", b"\x08\x03", b"\x0a\x01a", b"\x0a\x01\xff", b"\x08\x01"])
scalars = st.builds(
    lambda number, value: wire.varint(number << 3) + wire.varint(value),
    numbers,
    st.integers(0, 2**64 - 1),
)
fixed = st.builds(
    lambda number, kind, data: wire.varint(number << 3 | kind[0]) + data[: kind[1]],
    numbers,
    st.sampled_from([(1, 8), (5, 4), (3, 0), (4, 0), (6, 0), (7, 0)]),
    st.binary(min_size=8, max_size=8),
)
leaves = scalars | fixed | st.builds(framed, numbers, small)
messages = st.recursive(
    st.lists(leaves, max_size=4).map(b"".join),
    lambda inner: st.lists(
        leaves
        | st.builds(framed, numbers, inner)
        | st.builds(framed, st.sampled_from([5, 6, 11, 12]), inner)
        | st.builds(framed, st.sampled_from([7, 8, 14]), st.builds(with_key, keys, inner | small)),
        max_size=5,
    ).map(b"".join),
    max_leaves=12,
)
cuts = st.lists(st.integers(0, 1 << 16), max_size=5)


@QUICK
@given(data=messages, cuts=cuts, least=st.integers(1, 4))
def test_any_fields(code: Generated, data: bytes, cuts: list[int], least: int) -> None:
    check(code.everything.Everything, data, cuts, least)


@QUICK
@given(
    data=messages, noise=st.lists(st.tuples(st.integers(0, 999), st.integers(0, 255)), max_size=3)
)
def test_damaged_bytes(code: Generated, data: bytes, noise: list[tuple[int, int]]) -> None:
    damaged = bytearray(data)
    for at, byte in noise:
        if damaged:
            damaged[at % len(damaged)] = byte
    check(code.everything.Everything, bytes(damaged), [], 1)
    check(code.everything.Everything, bytes(damaged[: len(damaged) // 2]), [3], 1)


@QUICK
@given(data=st.binary(max_size=60), cuts=cuts)
def test_noise(code: Generated, data: bytes, cuts: list[int]) -> None:
    check(code.everything.Everything, data, cuts, 1)
    check(code.old.Old, data, cuts, 1)


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ([framed(2, b"abc")], 1),
        ([framed(2, b"abc"), framed(2, b"d")], 0),  # protobuf takes the last
        ([framed(5, framed(1, b"abc")), framed(5, framed(2, b"d"))], 0),  # and merges messages
        ([framed(4, b"abc"), framed(4, b""), framed(4, b"d")], 2),
        ([framed(9, b"abc"), framed(10, b"d")], 0),  # another member of the oneof
        ([framed(10, b"abc"), framed(9, b"d")], 1),
        ([framed(11, framed(1, b"abc")), framed(9, b"d")], 0),
        ([framed(7, b"\x0a\x01a" + framed(2, b"abc")), framed(7, b"\x0a\x01b")], 1),
        ([framed(7, b"\x0a\x01a" + framed(2, b"abc")), framed(7, b"\x0a\x01a")], 0),
        ([framed(7, framed(2, b"abc"))], 1),  # without a key it is ""
        ([framed(7, framed(2, b"abc") + b"\x0a\x01a\x0a\x01b")], 1),
        ([framed(12, framed(2, b"abc")) + framed(2, b"d")], 2),
        ([b"\x10\x01", framed(2, b"abc")], 1),  # a number where bytes belong is unknown to protobuf
        ([framed(2, b"abc"), b"\x8b\x01\x8c\x01"], 0),  # an unknown group
        ([framed(99, framed(2, b"abc"))], 0),
        ([b"\x12\x83\x00abc"], 0),  # a length that takes more bytes than it needs
        ([b"\x92\x00\x03abc"], 0),
    ],
)
def test_what_is_taken_out(code: Generated, fields: list[bytes], taken: int) -> None:
    attached = check(code.everything.Everything, b"".join(fields), [], 1)
    assert len(attached._buffers) == taken


def test_depth_is_protobufs(code: Generated) -> None:
    data = framed(2, b"abc")
    for _ in range(60):
        data = framed(12, data)
    path = ("inner",) * 60
    attached = check(code.everything.Everything, data, [], 1)
    assert attached[(*path, "data")] == b"abc"
    for _ in range(60):
        data = framed(12, data)
    assert check(code.everything.Everything, data, [], 1) is None


def test_many_fields_are_left_to_protobuf(code: Generated) -> None:
    kind = code.everything.Everything
    few = framed(4, b"abc") * wire.MAX_FIELDS
    assert len(check(kind, few, [], 1)._buffers) == wire.MAX_FIELDS
    attached = check(kind, few + framed(4, b"d"), [], 1)
    assert attached._buffers == {}
    assert attached["parts", -1] == b"d"


def test_views_lie_over_the_segments(code: Generated) -> None:
    take = deserializer(code.everything.Everything, 2)
    whole = framed(1, b"name") + framed(2, b"payload")
    attached = take([whole])
    assert attached["data"].obj is whole
    assert attached.message.data == b""
    assert attached.message.name == "name"
    cut = [whole[:-7], b"payload"]
    assert take(cut)["data"].obj is cut[1]
    # Cut where no serializer of ours cuts.
    assert take([whole[:-3], whole[-3:]])["data"] == b"payload"


def test_short_ones_stay_inside_unless_they_are_named(code: Generated) -> None:
    kind = code.everything.Everything
    data = kind(data=b"x", parts=[b"", b"y" * wire.LARGE, b"z"]).SerializeToString()
    large = deserializer(kind, wire.LARGE)(data)
    assert list(large._buffers) == [("parts", 1)]
    assert large.message.data == b"x"
    assert large["data"] == b"x"
    named = deserializer(kind, 1, ("test.everything.Everything.data", "parts"))(data)
    assert list(named._buffers) == [("data",), ("parts", 1), ("parts", 2)]
    assert named["parts"] == [b"", b"y" * wire.LARGE, b"z"]


def test_a_message_without_views_is_what_protobuf_reads(code: Generated) -> None:
    kind = code.everything.Everything
    take = deserializer(kind, 1)
    assert isinstance(take([]), Attached)
    assert take([]).message == kind()
    with pytest.raises(DecodeError):
        take([b"\xff"])
