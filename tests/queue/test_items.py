# SPDX-License-Identifier: Apache-2.0
"""Objects to segments and back, and what a hostile peer may send for them."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import tensorwire
from tensorwire import tensors
from tensorwire.queue import errors, items, wire
from tensorwire.queue.encoded import Encoded
from tensorwire.queue.store import Stats
from tensorwire.tensors import DecodeError

PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 80), 1 << 80), st.text(), st.binary(max_size=40)
)
ARRAYS = arrays.arrays(
    st.sampled_from(["uint8", "float32", "int64", "complex64", "bool"]),
    arrays.array_shapes(min_dims=0, max_side=4),
)
TREES = st.recursive(
    PLAIN | ARRAYS,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.tuples(parts, parts),
        st.dictionaries(st.text(max_size=5), parts, max_size=3),
    ),
    max_leaves=8,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and bool(left == right)


@given(st.lists(TREES, min_size=1, max_size=5))
def test_items_in_a_message_come_out_as_they_went_in(objects: list[Any]) -> None:
    made = [items.kept(items.encoded(obj, "q", 1 << 30)) for obj in objects]
    segments = [memoryview(bytes(segment)) for segment in wire.put_message(made, True)]
    put = wire.decode(wire.Put, segments[0])
    found = wire.split(put, segments)
    assert put.ask
    assert [item.nbytes for item in found] == [item.nbytes for item in made]
    assert all(map(same, objects, [items.decoded(item, "numpy") for item in found]))


@pytest.mark.parametrize("dtype", ["f4", ">f8", "?", "c16", "M8[ns]", "i1"])
@pytest.mark.parametrize("shape", [(), (1,), (64,), (3, 5), (2, 1, 4), (1,) * 32])
def test_items_of_a_pack(dtype: str, shape: tuple[int, ...]) -> None:
    """Of a kind that was decoded before, they are rows of one array."""
    arrays = [
        np.arange(n, n + max(1, math.prod(shape))).astype(dtype).reshape(shape) for n in range(5)
    ]
    for again in range(2):
        message = wire.put_message([items.encoded(array, "q", 1 << 30) for array in arrays], False)
        segments = [memoryview(bytes(segment)) for segment in message]
        if not again:
            tensors.loads([segments[1], segments[2][: arrays[0].nbytes]])
        found = wire.split(wire.decode(wire.Put, segments[0]), segments)
        got = [items.decoded(item, "numpy") for item in found]
        assert all(map(same, arrays, got))
        assert (got[0].base is got[1].base) == (0 < len(shape) < 32)
        assert not any(array.flags.writeable for array in got)
        with pytest.raises(ValueError, match="WRITEABLE"):
            got[0].flags.writeable = True
        assert wire.put_message(found, False) == message  # as they are passed on


def test_small_items_that_are_alike_share_their_header() -> None:
    alike = [np.full((3, 5), n, np.float32) for n in range(50)]
    made = [items.encoded(array, "q", 1 << 30) for array in alike]
    message = wire.items_message(made)
    assert len(message) == 3
    found = wire.split(wire.decode(wire.Items, message[0]), message)
    assert [item.nbytes for item in found] == [item.nbytes for item in made]
    assert all(map(same, alike, [items.decoded(item, "numpy") for item in found]))
    others: list[Any] = [np.zeros(15, np.float32), np.zeros((3, 5)), np.zeros((0, 5)), {}]
    for other in others:
        assert len(wire.items_message([*made, items.encoded(other, "q", 1 << 30)])) > 50


def test_what_is_kept_does_not_change_with_the_array() -> None:
    for size in (10, 100_000):
        array = np.zeros(size)
        kept = items.kept(items.encoded([array], "q", 1 << 30))
        array[:] = 1
        (found,) = items.decoded(kept, "numpy")
        assert not found.any()
        with pytest.raises(ValueError, match="read-only"):
            found[0] = 1


def test_what_was_published_is_not_copied() -> None:
    array = tensorwire.publish(np.ones(100_000))
    kept = items.kept(items.encoded(array, "q", 1 << 30))
    assert np.shares_memory(items.decoded(kept, "numpy"), array)


def test_a_full_arena_makes_a_copy_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise tensorwire.ArenaFullError

    monkeypatch.setattr("tensorwire.queue.items.arrays.empty", full)
    kept = items.kept(items.encoded(np.ones(100_000), "q", 1 << 30))
    assert items.decoded(kept, "numpy").sum() == 100_000


def test_an_item_that_never_fits() -> None:
    with pytest.raises(errors.TooLargeError, match=r"never fits into queue 'q', .* is 1000"):
        items.encoded(np.zeros(1000), "q", 1000)


@pytest.mark.parametrize("counts", [(0,), (3,), (1, 0, 1), (1 << 40,), (-1, 3), (1,) * 5000])
def test_counts_that_are_wrong(counts: tuple[int, ...]) -> None:
    with pytest.raises(DecodeError):
        wire.split(wire.Put(counts, 0, False), [b"control", b"1", b"2"])


@pytest.mark.parametrize(
    "control",
    [
        wire.Put((), 3, False),  # 4 bytes
        wire.Put((), 5, False),  # more items than bytes
        wire.Put((), wire.MAX_ITEMS + 1, False),
        wire.Put((2,), 2, False),
        wire.Items((2, 2), 2),
    ],
)
def test_packed_items_that_are_none(control: wire.Put | wire.Items) -> None:
    with pytest.raises(DecodeError):
        wire.split(control, [b"control", b"1", b"1234"])
    with pytest.raises(DecodeError):
        wire.split(wire.Put((), 1, False), [b"control", b"1"])


CONTROLS = [
    wire.Opened(1, 2, 3, 4, 5),
    wire.Put((1, 2), 0, True),
    wire.Settled(1, 2, 3),
    wire.Ask(1, 2, 3),
    wire.Items((), 3),
    wire.Withdraw(1, 2, 3),
    wire.Withdrawn(1),
]


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: type(control).__name__)
def test_controls(control: Any) -> None:
    kind = type(control)
    assert wire.decode(kind, wire.encode(control)) == control
    for wrong in (b"", b"\xc1", wire.encode(control)[:-1], bytes(wire.MAX_CONTROL_BYTES + 1)):
        with pytest.raises(DecodeError):
            wire.decode(kind, wrong)
    fields = list(msgspec.structs.astuple(control))
    for place, value in enumerate(fields):
        if type(value) is int:
            for number in (-1, 1 << 63):
                wrong = msgspec.msgpack.encode([*fields[:place], number, *fields[place + 1 :]])
                with pytest.raises(DecodeError):
                    wire.decode(kind, wrong)


@given(st.binary(max_size=60), st.sampled_from(CONTROLS))
def test_any_bytes_are_a_control_or_an_error(data: bytes, control: Any) -> None:
    with suppress(DecodeError):
        found = wire.decode(type(control), data)
        if isinstance(found, (wire.Put, wire.Items)):
            wire.split(found, [data, b"1", b"2"])


@given(st.binary(max_size=60))
def test_any_bytes_are_statistics_or_an_error(data: bytes) -> None:
    stats = Stats(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, True)
    assert wire.decode_stats(wire.encode(stats)) == stats
    with suppress(DecodeError):
        wire.decode_stats(data)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=3))
def test_any_segments_are_an_object_or_an_error(segments: list[bytes]) -> None:
    with pytest.raises(DecodeError):
        items.decoded(Encoded(segments, 0), "numpy")
