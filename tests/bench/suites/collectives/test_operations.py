# SPDX-License-Identifier: Apache-2.0
"""What ranks give and must find: computed here by NumPy alone, in one process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tensorwire.bench.harness.measure import WrongAnswerError
from tensorwire.bench.suites.collectives.operations import (
    DTYPES,
    OPERATIONS,
    PARTS,
    PERIOD,
    Array,
    Arrays,
    arrays,
    check,
    exchanged,
    messages,
    parts,
    portions,
    whole,
)

EXCHANGES = [case for case in OPERATIONS if case != "barrier"]


def perform(case: str, ranks: Sequence[Arrays]) -> None:
    """As a library that does it right."""
    if OPERATIONS[case].uneven:
        perform_uneven(case, ranks)
        return
    if OPERATIONS[case].coalesced:
        for each in zip(
            *(zip(parts(a.given), parts(a.taken), strict=True) for a in ranks), strict=True
        ):
            perform(OPERATIONS[case].plain, [Arrays(*arrays) for arrays in each])
        return
    count = len(ranks)
    given = [rank.given.copy() for rank in ranks]
    for number, rank in enumerate(ranks):
        if case == "all_reduce" or (case == "reduce" and number == 0):
            rank.taken[:] = sum(given)
        elif case == "broadcast":
            rank.taken[:] = given[0]
        elif case == "all_gather" or (case == "gather" and number == 0):
            rank.taken[:] = np.concatenate(given)
        elif case == "reduce_scatter":
            rank.taken[:] = np.split(sum(given), count)[number]
        elif case == "scatter":
            rank.taken[:] = np.split(given[0], count)[number]
        elif case == "all_to_all":
            rank.taken[:] = np.concatenate([np.split(each, count)[number] for each in given])
        elif case in ("ping_pong", "stream") and number < 2:
            rank.taken[:] = given[1 - number]


def perform_uneven(case: str, ranks: Sequence[Arrays]) -> None:
    """Of two ranks the shares are 1 and 2 of 3 parts, of three ranks 1, 2 and 3 of 6, ..."""
    given, count = [rank.given.copy() for rank in ranks], len(ranks)
    one = max(ranks[0].given.size, ranks[0].taken.size) // sum(range(count + 1))

    def share(giver: int, taker: int) -> Array:
        """Of an all-to-all, in which each rank gives the shares in another order."""
        sizes = [one * ((giver + each) % count + 1) for each in range(count)]
        return given[giver][sum(sizes[:taker]) :][: sizes[taker]]

    for number, rank in enumerate(ranks):
        if case == "all_gather_v":
            assert rank.given.size == one * (number + 1)
            rank.taken[:] = np.concatenate(given)
        elif case == "reduce_scatter_v":
            assert rank.taken.size == one * (number + 1)
            start = one * sum(range(number + 1))
            rank.taken[:] = sum(given[1:], given[0])[start : start + rank.taken.size]
        else:
            rank.taken[:] = np.concatenate([share(giver, number) for giver in range(count)])


def group(case: str, size: int, ranks: int, dtype: str = "float32") -> list[Arrays]:
    size = whole(case, size, ranks, dtype)
    return [arrays(case, size, rank, ranks, dtype) for rank in range(ranks)]


@pytest.mark.parametrize("case", EXCHANGES)
@pytest.mark.parametrize(
    ("size", "ranks", "dtype"),
    [(8, 2, "float32"), (8, 4, "float16"), (PERIOD * 9, 3, "int8"), (PERIOD * 9, 2, "float64")],
)
def test_what_is_right_is_found_right(case: str, size: int, ranks: int, dtype: str) -> None:
    found = group(case, size, ranks, dtype)
    perform(case, found)
    for rank, each in enumerate(found):
        check(case, each, rank, ranks)


@pytest.mark.parametrize("case", EXCHANGES)
def test_nothing_done_is_wrong(case: str) -> None:
    found = group(case, PERIOD * 12, 3)
    if OPERATIONS[case].plain in ("broadcast", "stream"):
        with pytest.raises(WrongAnswerError):
            check(case, found[1], 1, 3)
        return
    with pytest.raises(WrongAnswerError, match=f"the {case} of .* bytes is wrong: element"):
        check(case, found[0], 0, 3)


@pytest.mark.parametrize("case", EXCHANGES)
@pytest.mark.parametrize("place", [0, PERIOD, -1])
def test_one_wrong_element_is_told(case: str, place: int) -> None:
    found = group(case, PERIOD * 24, 2)
    perform(case, found)
    taker = 1 if case == "stream" else 0
    found[taker].taken[place] += 1
    element: int | str = place % found[taker].taken.size
    if OPERATIONS[case].form_of and not OPERATIONS[case].in_place:
        element = r"\d+"  # of the share, or of the share of a part
    elif case in ("all_gather", "gather", "all_to_all"):  # each rank's part is counted by itself
        element = place % (found[taker].taken.size // 2)
    with pytest.raises(WrongAnswerError, match=rf"element {element} is .*, expected "):
        check(case, found[taker], taker, 2)


def test_shares_of_ranks_that_change_places_are_wrong() -> None:
    found = group("all_gather", 1 << 20, 2)
    perform("all_gather", found)
    taken = found[0].taken
    taken[:] = np.roll(taken, taken.size // 2)
    with pytest.raises(WrongAnswerError):
        check("all_gather", found[0], 0, 2)


@pytest.mark.parametrize(
    ("case", "size", "ranks", "dtype", "expected"),
    [
        ("all_reduce", 8, 4, "float32", 8),
        ("all_reduce", 9, 2, "float32", 12),
        ("all_gather", 8, 4, "float32", 16),
        ("reduce_scatter", 64, 3, "float64", 72),
        ("all_to_all", 7, 2, "int8", 8),
        ("barrier", 1 << 20, 2, "float32", 0),
        ("ping_pong", 9, 3, "float32", 12),
        ("all_gather_v", 8, 2, "float32", 12),
        ("all_to_all_v", 64, 4, "float64", 80),
        ("all_reduce_many", 8, 4, "float32", PARTS * 4),
        ("all_gather_many", 8, 4, "float32", PARTS * 4 * 4),
    ],
)
def test_sizes_grow_to_whole_elements_of_each_rank(
    case: str, size: int, ranks: int, dtype: str, expected: int
) -> None:
    assert whole(case, size, ranks, dtype) == expected


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    found = {case: OPERATIONS[case].bus(4) for case in OPERATIONS}
    assert found == {
        "all_reduce": 1.5,
        "broadcast": 1,
        "all_gather": 0.75,
        "reduce_scatter": 0.75,
        "all_to_all": 0.75,
        "reduce": 1,
        "gather": 0.75,
        "scatter": 0.75,
        "barrier": 1,
        "ping_pong": 1,
        "stream": 1,
        "all_gather_v": 0.9,
        "reduce_scatter_v": 0.9,
        "all_to_all_v": 0.9,
        "all_reduce_many": 1.5,
        "broadcast_many": 1,
        "all_gather_many": 0.75,
        "reduce_scatter_many": 0.75,
    }


def test_uneven_shares_grow_with_the_rank_and_make_up_the_whole() -> None:
    assert portions(30, 4) == [3, 6, 9, 12]
    given = [exchanged(30, rank, 4) for rank in range(4)]
    assert given[1] == [6, 9, 12, 3]
    assert [sum(each) for each in given] == [30] * 4
    taken = [list(each) for each in zip(*given, strict=True)]
    assert taken == given


def test_a_stream_has_as_many_messages_as_are_not_too_much_at_once() -> None:
    sizes = (1, 1 << 20, 4 << 20, 64 << 20, 1 << 30)
    assert [messages("stream", size) for size in sizes] == [64, 64, 16, 2, 2]
    assert messages("ping_pong", 8) == 2
    assert messages("all_reduce", 8) == messages("barrier", 0) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_many_ranks_are_exact(dtype: str) -> None:
    found = group("all_reduce", 4096, 8, dtype)
    exact = sum(each.given.astype(np.int64) for each in found)
    perform("all_reduce", found)
    assert np.array_equal(found[0].taken, exact)
