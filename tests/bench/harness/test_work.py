# SPDX-License-Identifier: Apache-2.0
"""What is measured: sizes, plans, payloads and the answers that prove their arrival."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.bench.harness import work
from tensorwire.bench.suites.rpc.suite import plan


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("8", 8),
        ("8B", 8),
        ("512K", 512 << 10),
        ("512kb", 512 << 10),
        ("64M", 64 << 20),
        ("64 MiB".replace(" ", ""), 64 << 20),
        (" 1g ", 1 << 30),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert work.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "8.5K", "-8", "8T", "8KK", "٨", "1_000", "8 8"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        work.parse_size(text)


@pytest.mark.parametrize("text", ["1", "4", "12", "20B"])
def test_sizes_are_whole_words(text: str) -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        work.parse_size(text)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8", [8]),
        ("8:64:2", [8, 16, 32, 64]),
        ("8:100:4", [8, 32]),
        ("1K:1M:32", [1 << 10, 32 << 10, 1 << 20]),
        ("8:8:3", [8]),
    ],
)
def test_ranges_of_sizes(text: str, sizes: list[int]) -> None:
    assert work.parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("8:64M", "FROM:TO:FACTOR"),
        ("8:64M:4:2", "FROM:TO:FACTOR"),
        (":64M:4", "is no size"),
        ("8::4", "is no size"),
        ("12:64M:4", "multiple of 8"),
        ("8:64M:", "the factor"),
        ("8:64M:1", "the factor"),
        ("8:64M:1.5", "the factor"),
        ("8:64M:-2", "the factor"),
        ("0:64M:2", "above 0"),
        ("64M:8:2", "below its begin"),
    ],
)
def test_what_is_no_range(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        work.parse_sizes(text)


@given(st.integers(0, 1 << 34).map(lambda words: words * 8))
def test_a_size_survives_being_written(size: int) -> None:
    assert work.parse_size(work.format_size(size)) == size


def test_a_plan_holds_every_combination_once() -> None:
    works = plan([8, 64], callers=2)
    assert len(works) == len(set(works)) == 2 * (2 * 2 * 2 + 2)
    assert {w.callers for w in works} == {2}


def test_a_streams_receiver_never_adds_up() -> None:
    assert not any(w.reads for w in plan([8], cases=["stream"]))


def test_only_arrays_are_published() -> None:
    works = plan([8], cases=["request"], reads=[False], payloads=["array", "bytes"])
    assert [(w.payload, w.origin) for w in works] == [
        ("array", "ordinary"),
        ("array", "published"),
        ("bytes", "ordinary"),
    ]


def test_works_are_comparable_across_origins_only() -> None:
    base = work.Work("request", 8)
    assert base.comparable == work.Work("request", 8, origin="published").comparable
    for other in (
        work.Work("pull", 8),
        work.Work("request", 16),
        work.Work("request", 8, reads=True),
        work.Work("request", 8, callers=2),
        work.Work("request", 8, payload="bytes"),
    ):
        assert other.comparable != base.comparable


@pytest.mark.parametrize("size", [0, 8, 4096, 1 << 20])
def test_payloads_have_their_size_and_survive_the_wire(size: int) -> None:
    array = work.payload(size)
    assert array.nbytes == size
    assert array.dtype == np.dtype(np.float32)
    received = work.view(array.tobytes())
    assert work.answer(received, reads=False) == size
    assert work.answer(received, reads=True) == work.checksum(array)


@given(st.integers(0, 1023), st.integers(1, 255))
def test_a_checksum_sees_every_byte(position: int, change: int) -> None:
    array = work.payload(1024)
    before = work.checksum(array)
    array.view(np.uint8)[position] ^= change
    assert work.checksum(array) != before
