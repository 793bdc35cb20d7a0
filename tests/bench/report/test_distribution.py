# SPDX-License-Identifier: Apache-2.0
"""How single calls are distributed: in pictures, in a table, and not beyond what is known."""

from __future__ import annotations

import pytest
from tests.bench.report import made

from tensorwire.bench.report import distribution

ROWS = [*made.sweep("grpcio", 3, (8, 64)), *made.sweep("tensorwire", 1, (8, 64))]


def test_lines_go_over_the_percentile_as_far_as_it_is_known() -> None:
    run = made.run(ROWS, singles=200)
    small, large = distribution.draw(run)
    assert (small.title, large.title) == (
        "Distribution: request, 8 B",
        "Distribution: request, 64 B",
    )
    layout = small.figure["layout"]
    assert (layout["xaxis"]["type"], layout["yaxis"]["type"]) == ("log", "log")
    assert layout["xaxis"]["ticktext"] == ["0 %", "50 %", "90 %", "99 %"]
    theirs, ours = small.figure["data"]
    assert (theirs["name"], ours["name"]) == ("grpcio grpc", "tensorwire tcp")
    assert ours["x"][0] == 1
    assert ours["x"][-1] <= 200 < ours["x"][-1] * 10 ** (1 / distribution.MARKS_IN_A_DECADE)
    assert ours["y"] == sorted(ours["y"])
    at = dict(zip(ours["customdata"], ours["y"], strict=True))
    # From 0.98 to 1.02 times 10 us, and up to twice as long.
    assert at["99 %: 20 us"] == pytest.approx(20.0, rel=0.005)
    assert "tensorwire tcp: 9.8 us at least, 15 us at 50 %, 19 us at 90 %, 20 us at 99 %," in (
        small.words
    )


def test_a_table_has_no_percentile_beyond_the_calls_of_a_round() -> None:
    for singles, percentiles in ((200, 3), (50, 2), (5, 1)):
        found = distribution.table(made.run(ROWS, singles=singles))
        assert found is not None
        assert found.head[8:] == ["least", "p50", "p90", "p99", "p99.9", "most"]
        for row in found.rows:
            assert row[7] == str(5 * singles)
            assert [bool(each) for each in row[9:13]] == [place < percentiles for place in range(4)]
            assert row[8]
            assert row[13]


def test_what_kept_no_single_calls_has_neither() -> None:
    run = made.run(ROWS)
    assert [*distribution.draw(run)] == []
    assert distribution.table(run) is None


def test_works_and_receivers_that_read_have_pictures_of_their_own() -> None:
    rows = [
        *made.sweep("tensorwire", 1, (8,)),
        *made.sweep("tensorwire", 1, (8,), reads=True),
        *made.sweep("tensorwire", 1, (8,), callers=2, payload="bytes"),
        *made.sweep("tensorwire", 1, (1 << 20,), transport="shm", origin="published"),
    ]
    found = [*distribution.draw(made.run(rows, singles=9))]
    assert [each.title.removeprefix("Distribution: ") for each in found] == [
        "request, 8 B",
        "request, 8 B, the receiver reads",
        "request, 8 B, bytes, 2 callers",
        "request, 1 MiB",
    ]
    (ours,) = found[-1].figure["data"]
    assert ours["name"] == "tensorwire shm, published, only announced"
    assert ours["marker"]["symbol"].endswith("-open")
