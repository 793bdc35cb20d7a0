# SPDX-License-Identifier: Apache-2.0
"""The payloads of TF-gRPC-Bench: what its schemes come to, and what is refused."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.bench.suites.tf_grpc import payloads
from tensorwire.bench.suites.tf_grpc.payloads import (
    BUFFERS,
    CATEGORIES,
    DRAWS,
    LARGE,
    MEDIUM,
    MOST_BUFFERS,
    SMALL,
    Mix,
    Sizes,
    Workload,
    workload,
)

S, M, L = 10, 10 << 10, 1 << 20

some_categories = st.permutations(list(CATEGORIES)).flatmap(
    lambda order: st.integers(1, 3).map(lambda count: tuple(order[:count]))
)
counts = st.integers(1, 200)


def only(scheme: str, mix: Mix = Mix()) -> payloads.Payload:  # noqa: B008
    (payload,) = workload(scheme, mix).payloads
    return payload


def test_the_defaults_of_the_tables() -> None:
    assert (SMALL.default, MEDIUM.default, LARGE.default) == (S, M, L)
    assert (SMALL.least, SMALL.most) == (1, 1023)
    assert (MEDIUM.least, MEDIUM.most) == (1024, (1 << 20) - 1)
    assert (LARGE.least, LARGE.most) == (1 << 20, 10 << 20)
    assert BUFFERS == 10


def test_uniform_of_ten_buffers() -> None:
    payload = only("uniform")
    assert Counter(payload) == {L: 4, M: 3, S: 3}
    assert payload[:3] == (S, M, L)


def test_uniform_takes_categories_in_any_order() -> None:
    assert only("uniform", Mix(categories=("large", "small"), buffers=4)) == (L, S, L, S)
    assert only("uniform", Mix(categories=("small",), buffers=3)) == (S, S, S)


@pytest.mark.parametrize(
    ("bias", "expected"),
    [("large", {L: 6, M: 3, S: 1}), ("small", {S: 6, M: 3, L: 1}), ("medium", {M: 6, L: 3, S: 1})],
)
def test_skew_of_ten_buffers(bias: str, expected: dict[int, int]) -> None:
    assert Counter(only("skew", Mix(bias=bias))) == expected


def test_skew_of_two_categories() -> None:
    assert Counter(only("skew", Mix(categories=("small", "large")))) == {L: 6, S: 4}


@given(categories=some_categories, count=counts)
def test_uniform_is_even(categories: tuple[str, ...], count: int) -> None:
    found = Counter(payloads.uniform(categories, count))
    assert sum(found.values()) == count
    each = [found[name] for name in categories]
    assert max(each) - min(each) <= 1
    by_size = [found[name] for name in CATEGORIES if name in categories]
    assert by_size == sorted(by_size), "what is left over goes to the larger ones"


@given(categories=some_categories, count=counts, bias=st.sampled_from(list(CATEGORIES)))
def test_skew_is_within_one_buffer_of_its_shares(
    categories: tuple[str, ...], count: int, bias: str
) -> None:
    if len(categories) < 2 or bias not in categories:
        with pytest.raises(ValueError, match="categories"):
            payloads.skew(categories, count, bias)
        return
    found = Counter(payloads.skew(categories, count, bias))
    assert sum(found.values()) == count
    assert abs(found[bias] - 0.6 * count) < 1
    assert found[bias] == max(found.values())


@given(categories=some_categories, count=counts, seed=st.integers())
def test_random_draws_the_same_again(categories: tuple[str, ...], count: int, seed: int) -> None:
    if len(categories) < 2:
        with pytest.raises(ValueError, match="two categories"):
            payloads.draws(categories, count, seed)
        return
    found = payloads.draws(categories, count, seed)
    assert found == payloads.draws(categories, count, seed)
    assert [len(draw) for draw in found] == [count] * DRAWS
    assert {name for draw in found for name in draw} <= set(categories)


@given(
    small=st.integers(-1, 2000),
    medium=st.integers(0, 2 << 20),
    large=st.integers(0, 20 << 20),
)
def test_sizes_out_of_range_are_refused_with_the_range(small: int, medium: int, large: int) -> None:
    wrong = [
        category
        for category, size in zip(CATEGORIES.values(), (small, medium, large), strict=True)
        if not category.least <= size <= category.most
    ]
    if not wrong:
        assert Sizes(small, medium, large).of("medium") == medium
        return
    with pytest.raises(ValueError, match=f"no {wrong[0].name} buffer: those have .* to "):
        Sizes(small, medium, large)


def test_the_range_is_told_as_people_write_it() -> None:
    with pytest.raises(ValueError, match="1048575 bytes are no large buffer: those have 1M to 10M"):
        Sizes(large=(1 << 20) - 1)


@given(pattern=st.text("SMLsml", min_size=1, max_size=40))
def test_custom_patterns(pattern: str) -> None:
    sizes = {"S": S, "M": M, "L": L}
    expected = tuple(sizes[letter] for letter in pattern.upper())
    assert only("custom", Mix(pattern=pattern)) == expected


@pytest.mark.parametrize("pattern", ["", "SMX", "S M"])
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="no pattern"):
        workload("custom", Mix(pattern=pattern))


@pytest.mark.parametrize(
    ("scheme", "mix", "told"),
    [
        ("uniform", Mix(categories=("tiny",)), "tiny: no categories; there are small, medium"),
        ("uniform", Mix(categories=()), "no categories"),
        ("uniform", Mix(categories=("small", "small")), "counts once"),
        ("uniform", Mix(buffers=0), "0 buffers: a payload has 1 to 65535"),
        ("random", Mix(categories=("small",)), "two categories"),
        ("skew", Mix(categories=("small", "large"), bias="medium"), "a bias to medium"),
        ("zipf", Mix(), "no scheme; there are uniform"),
        ("uniform", Mix(buffers=MOST_BUFFERS, categories=("large",)), "is the most, which"),
    ],
)
def test_wrong_mixes_are_told(scheme: str, mix: Mix, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        workload(scheme, mix)


def test_a_model_is_one_payload_of_all_its_tensors() -> None:
    found = payloads.of_model("resnet50")
    (payload,) = found.payloads
    assert len(payload) == 161
    assert found.nbytes == sum(payload) == 102_236_324
    with pytest.raises(ValueError, match="no model"):
        payloads.of_model("nonsense")


def test_bytes_of_a_call_are_a_mean() -> None:
    assert Workload("two", ((4, 4), (2,))).nbytes == 5
    for empty in ((), ((),)):
        with pytest.raises(ValueError, match="at least one buffer"):
            Workload("none", empty)
