# SPDX-License-Identifier: Apache-2.0
"""Two runs, row by row."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.bench.report import made

from tensorwire.bench.report.comparison import compare, parse_limit, verdict
from tensorwire.bench.report.printed import print_comparison
from tensorwire.bench.report.runs import Run
from tensorwire.bench.report.speed import Ratio

BEFORE = made.run([*made.sweep("grpcio", 3), *made.sweep("tensorwire")], "before.json")


def after(ours: float, theirs: float = 3.0, **more: Any) -> Run:
    rows = [*made.sweep("grpcio", theirs), *made.sweep("tensorwire", ours)]
    return made.run(rows, "after.json", **more)


@pytest.mark.parametrize(
    ("by", "limit", "found"),
    [
        (Ratio(0.9, 0.85, 0.95), 0.05, "slower"),
        (Ratio(0.9, 0.85, 0.95), 0.2, "same"),
        (Ratio(0.9, 0.8, 1.01), 0.05, "same"),
        (Ratio(0.96, 0.95, 0.97), 0.05, "same"),
        (Ratio(1.2, 1.1, 1.3), 0.05, "faster"),
        (Ratio(1.2, 1.1, 1.3), 0.25, "same"),
        (Ratio(0.5, noise=0.5), 0.05, "slower"),
        (Ratio(0.7, noise=0.5), 0.05, "same"),
        (Ratio(0.5), 0.05, "unknown"),
    ],
)
def test_verdicts(by: Ratio, limit: float, found: str) -> None:
    assert verdict(by, limit) == found


def test_a_slower_row_of_ours_is_a_regression() -> None:
    found = compare(BEFORE, after(1.5))
    assert [each.after.row.size for each in found.regressions] == [8, 65536, 1 << 20]
    assert all(each.ratio.value == pytest.approx(1 / 1.5) for each in found.regressions)
    assert not compare(BEFORE, after(1.5), limit=0.6).regressions
    assert not compare(BEFORE, after(0.5)).regressions


def test_rows_of_others_do_not_decide() -> None:
    rows = [*made.sweep("grpcio", 6, (8, 64)), *made.sweep("tensorwire")]
    found = compare(BEFORE, made.run(rows, "after.json"))
    assert [(each.contender, each.verdict) for each in found.changes] == [
        *(("grpcio", "slower"), *[("tensorwire", "same")] * 3)
    ]
    assert not found.regressions
    assert (found.moved, found.notes) == (0, [])


def test_a_change_that_others_went_through_too_is_noise_between_runs() -> None:
    found = compare(BEFORE, after(1.15, theirs=3.6))
    assert found.moved == pytest.approx(0.2)
    assert not found.regressions
    assert found.notes == [
        "Rows of others, which do not change, became faster or slower by up to 20%, three in four "
        "of them: a change by less is none."
    ]
    assert len(compare(BEFORE, after(1.3, theirs=3.6)).regressions) == 3
    assert len(compare(BEFORE, after(1.15, theirs=3.1)).regressions) == 3


def test_a_host_that_moves_much_hides_no_large_change() -> None:
    found = compare(BEFORE, after(1.5, theirs=6))
    assert found.moved == 0.25
    assert "by up to 25%, three in four of them, or by more" in found.notes[0]
    assert len(found.regressions) == 3


def test_others_of_another_version_tell_no_noise() -> None:
    newer: dict[str, Any] = {"environment": {"versions": {"grpcio": "2", "tensorwire": "1"}}}
    found = compare(BEFORE, after(1.15, theirs=3.6, **newer))
    assert found.moved == 0
    assert len(found.regressions) == 3
    assert (
        found.notes[0] == "Others are of other versions, so that they tell no noise between runs."
    )


def test_a_row_of_ours_that_is_gone_is_missed_where_others_are() -> None:
    """What nobody has was not asked for."""
    rows = [*made.sweep("grpcio", 3, (8, 1 << 20)), *made.sweep("tensorwire", 1, (8,))]
    found = compare(BEFORE, made.run(rows, "after.json"))
    assert [each.row.size for each in found.missing] == [1 << 20]
    assert found.to_json()["missing"] == 1


def test_published_rows_of_ours_that_are_gone_are_missing() -> None:
    """Others have ordinary memory only."""
    times = [10.0] * 5
    published = (made.row("tensorwire", times, origin="published", reads=True), times)
    others = [(made.row(name, times, reads=True), times) for name in ("grpcio", "tensorwire")]
    found = compare(made.run([*others, published]), made.run(others, "after.json"))
    assert [each.row.origin for each in found.missing] == ["published"]


@settings(max_examples=20)
@given(st.lists(st.floats(1, 1e6), min_size=3, max_size=9), st.floats(0, 0.5))
def test_a_run_has_not_changed_against_itself(times: list[float], limit: float) -> None:
    run = made.run([(made.row("tensorwire", times), times)])
    (change,) = compare(run, run, limit).changes
    assert (change.ratio.value, change.verdict) == (1, "same")


def test_without_rounds_their_spread_decides() -> None:
    slow = after(1.5, rounds=False)
    found = compare(BEFORE, slow)
    assert len(found.regressions) == 3
    assert found.changes[0].ratio.low is None
    assert found.notes == [
        "after.json has no rounds: there are no intervals, and noise is the spread."
    ]


def test_unknown_noise_decides_nothing() -> None:
    bare: dict[str, Any] = {"rounds": False, "suite": "train"}
    old, new = (
        made.run([(made.row("tensorwire", [each], p50_spread=None), [each])], **bare)
        for each in (1.0, 9.0)
    )
    found = compare(old, new)
    assert [each.verdict for each in found.undecided] == ["unknown"]
    assert not found.regressions


def test_rows_of_one_run_only() -> None:
    rows = [*made.sweep("tensorwire", 1, (8,)), *made.sweep("zmq", 1, (8,))]
    found = compare(BEFORE, made.run(rows, "after.json"))
    assert [(each.row.contender, each.row.size) for each in found.gone] == [
        ("grpcio", 8),
        ("grpcio", 65536),
        ("tensorwire", 65536),
        ("grpcio", 1 << 20),
        ("tensorwire", 1 << 20),
    ]
    assert [each.row.contender for each in found.new] == ["zmq"]
    assert len(found.changes) == 1


def test_what_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match=r"is of the suite rpc, after.json of train"):
        compare(BEFORE, after(1, suite="train"))
    with pytest.raises(ValueError, match="have no row in common"):
        compare(BEFORE, made.run(made.sweep("zmq"), "after.json"))


def test_what_differs_between_the_hosts_is_told() -> None:
    def host(cpu: str, spin: float) -> dict[str, Any]:
        loop = {"spin": {"median_us": spin, "spread": 0.1}}
        return {"cpu": cpu, "load_average": spin, "noise": {"before": loop, "after": None}}

    rows = made.sweep("tensorwire")
    before, after = (
        made.run(rows, name, environment=host(cpu, spin))
        for name, cpu, spin in (("a.json", "old", 100), ("b.json", "new", 150))
    )
    assert compare(before, after).notes == [
        "The host's own loop (spin) takes 1.50x as long before b.json: times of the two say "
        "little.",
        "cpu was old, and is new.",
    ]
    assert compare(before, before).notes == []


@pytest.mark.parametrize(
    ("text", "found"), [("5%", 0.05), ("0.05", 0.05), (" 12.5 % ", 0.125), ("0", 0), ("150%", 1.5)]
)
def test_limits(text: str, found: float) -> None:
    assert parse_limit(text) == pytest.approx(found)


@pytest.mark.parametrize("text", ["", "%", "five", "-5%", "nan", "inf", "10", "5%%"])
def test_no_limits(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no limit: write 5% or 0\.05"):
        parse_limit(text)


def test_a_comparison_as_json() -> None:
    found = json.loads(json.dumps(compare(BEFORE, after(2)).to_json()))
    assert (found["before"], found["after"], found["regressions"]) == (
        *("before.json", "after.json"),
        3,
    )
    (first,) = [
        each for each in found["rows"] if (each["contender"], each["size"]) == ("tensorwire", 8)
    ]
    assert (first["figure"], first["verdict"]) == ("p50_us", "slower")
    assert first["ratio"] == pytest.approx(0.5)
    assert first["low"] <= first["ratio"] <= first["high"]
    assert first["after"] == pytest.approx(2 * first["before"])


def test_a_comparison_for_people() -> None:
    def printed(run: Run, width: int = 160) -> str:
        console = Console(file=io.StringIO(), width=width)
        print_comparison(compare(BEFORE, run), console)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    text = printed(after(2))
    assert "tensorwire bench compare: rpc" in text
    assert "request 1M" in text
    assert "0.50x" in text
    assert "Slower: tensorwire tcp request 8; tensorwire tcp request 64K;" in text
    assert "by chance" not in text
    assert "No row of ours is slower beyond noise." in printed(after(1))
    narrow = printed(after(2), 60)
    assert "0.50x" in narrow
    assert "Without " in narrow


@pytest.mark.parametrize("rounds", [3, 5, 9])
@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.4])
def test_two_runs_of_the_same_differ_by_no_more_than_their_noise(sigma: float, rounds: int) -> None:
    """But for one row in 20, and six more by chance (twice the deviation of ten in 200): rounds are
    drawn from one distribution for both."""
    drawn = np.random.default_rng(1).lognormal(3, sigma, (2, 200, rounds))
    old, new = (
        made.run([(made.row("tensorwire", each, 8 * at), each) for at, each in enumerate(run, 1)])
        for run in drawn.tolist()
    )
    verdicts = [change.verdict for change in compare(old, new).changes]
    assert 200 - verdicts.count("same") <= 200 / 20 + 6
    slowed = [(each.row, [2 * us for us in each.rounds.p50_us]) for each in new.measured]
    found = compare(old, made.run([(made.row("tensorwire", us, r.size), us) for r, us in slowed]))
    assert sigma > 0.1 or len(found.regressions) >= (195 if rounds < 5 else 200)


def test_of_many_rows_some_are_slower_by_chance() -> None:
    sizes = [8 * each for each in range(1, 61)]
    old, new = (made.run(made.sweep("tensorwire", factor, sizes)) for factor in (1, 2))
    console = Console(file=io.StringIO(), width=160)
    print_comparison(compare(old, new), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "; and 52 more." in text
    assert "of 60 rows that did not change, about 2 are below by chance" in text
