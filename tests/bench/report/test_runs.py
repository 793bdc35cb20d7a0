# SPDX-License-Identifier: Apache-2.0
"""Files of runs, also of strangers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bench.report import made
from tests.figures import profiles, sets

from tensorwire.bench.report import page, runs
from tensorwire.bench.report.charts import METRICS, draw
from tensorwire.bench.report.runs import MAX_BYTES, MAX_ROWS, MAX_TEXT, Rounds, parse, read

GOOD: Any = json.loads(
    made.written(
        [
            *made.sweep("grpcio", 3, (8, 64)),
            *made.sweep("tensorwire", 1, (8, 64)),
            *made.sweep("zmq", 0.5, (8,)),
        ],
        singles=3,
        samples=[
            {"contender": "zmq", "seconds": [0, 1], "figures": {"CPU (cores)": [0.5, 1.5]}},
        ],
    )
)


def test_a_run_has_its_rows_in_order_with_their_rounds() -> None:
    rows = [*made.sweep("tensorwire"), *made.sweep("grpcio", 3)]
    run = made.run(rows, "a.json")
    assert [each.row.contender for each in run.measured][:2] == ["grpcio", "tensorwire"]
    assert [each.row.size for each in run.measured] == [8, 8, 65536, 65536, 1 << 20, 1 << 20]
    times = {(row.contender, row.size): list(each) for row, each in rows}
    for each in run.measured:
        assert each.rounds.p50_us == times[each.row.contender, each.row.size]
    assert [each.role for each in run.measured][:2] == ["peer", "own"]
    assert run.has_rounds


def test_a_run_of_an_older_version_has_no_rounds_and_no_roles() -> None:
    rows = [*made.sweep("tensorwire"), *made.sweep("zmq")]
    run = made.run(rows, rounds=False, environment={"roles": {}})
    assert not run.has_rounds
    assert {each.row.contender: each.role for each in run.measured} == {
        "tensorwire": "own",
        "zmq": "peer",
    }
    assert run.measured[0].rounds == Rounds()


# The others are recordings, which are shown by the command that made them.
@pytest.mark.parametrize("file", sorted({*sets.FOLDER.glob("*.json")} - {profiles.file()}))
def test_the_files_of_figures_can_be_shown(file: Path) -> None:
    found = read(file)
    assert [each.command for each in found] == [
        each["command"] for each in json.loads(file.read_text())
    ]
    assert all(each.measured for each in found)
    assert all(any(list(draw(each, metric)) for metric in METRICS) for each in found)


@pytest.mark.parametrize(("calls", "known"), [(499, False), (500, True), (1000, True)])
def test_a_p99_is_of_a_hundred_calls_of_each_round(calls: int, known: bool) -> None:
    """Five rounds."""
    run = made.run(made.sweep("tensorwire", calls=calls, p99_ratio=2.0))
    assert all((each.row.p99_us is not None) is known for each in run.measured)
    assert all((each.row.p99_ratio is not None) is known for each in run.measured)


def test_the_p99_of_streams_is_of_a_hundred_streams() -> None:
    kept = json.loads(made.written(made.sweep("tensorwire", 1, (8, 64), calls=10**6)))
    for rounds, last in zip(kept["details"]["rounds"], (100, 99), strict=True):
        rounds["timed"] = [200, 200, 200, 200, last]
    (run,) = parse(json.dumps(kept).encode(), "run.json")
    assert [each.row.p99_us is not None for each in run.measured] == [True, False]


def changed(**fields: Any) -> bytes:
    return json.dumps({**GOOD, **fields}).encode()


def with_row(**fields: Any) -> bytes:
    return changed(rows=[{**GOOD["rows"][0], **fields}], details={})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "the list is empty"),
        (b"7", "this is no report"),
        (b'[{"command": 7, "report": {"schema": 1}}]', "the command is no text"),
        (b'[{"command": "", "report": 7}]', "this is no report"),
        (b"{}", "this is no report"),
        (changed(schema=2), "schema 2, and this version of tensorwire reads 1: measure again"),
        (changed(rows=None), "there are no rows"),
        (changed(rows=[7]), "there are no rows"),
        (changed(environment={"notes": "none"}), "notes"),
        (changed(environment={"roles": {"zmq": "king"}}), "king"),
        (changed(details={"rounds": [{}]}), "rounds of 1 rows, and there are 5"),
        (changed(details={"rounds": [{"p50_us": [-1]}] * 5}), "p50_us is -1.0: figures are from 0"),
        (changed(rows=GOOD["rows"][:1] * (MAX_ROWS + 1), details={}), "5001 rows, and 5000"),
        (changed(details={"rows": [{"samples_us": [[-1]]}] * 5}), "samples_us is -1.0"),
        (with_row(size=10**400), "size is 10{19}: figures are from 0"),
        (with_row(p50_us=-1), "p50_us is -1"),
        (with_row(p50_us="1"), "p50_us"),
        (with_row(callers=0), "callers of a row are 0"),
        (with_row(contender="a" * (MAX_TEXT + 1)), "contender has 501 characters"),
        (with_row(p50_ms=1), "unknown: p50_ms"),
        (
            changed(
                details={"samples": [{"contender": "a", "seconds": [1], "figures": {"b": []}}]}
            ),
            "samples of b: 0 at 1 times",
        ),
        (b" " * (MAX_BYTES + 1), "more than 64 MiB"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_shown_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text, "run.json")


def test_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*none.json \(No such file or directory\)"):
        read(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"bad.json: this is no report: give a file that tensorwire bench"
    ):
        read(tmp_path / "bad.json")


def test_what_became_no_number_is_not_there() -> None:
    text = with_row(p50_us=1.5).replace(b'"p50_us": 1.5', b'"p50_us": NaN')
    (run,) = parse(text, "run.json")
    assert run.measured[0].row.p50_us is None


def test_characters_that_change_others_are_replaced() -> None:
    (run,) = parse(with_row(contender="a\u202eb\x00c\ud800d"), "run.json")
    assert run.measured[0].row.contender == "a\ufffdb\ufffdc\ufffdd"


def test_an_environment_in_words() -> None:
    told = {"cpus": 2, "a": {"b": 0.123456, "c": {}}, "d": ["x", 1], "notes": ["n"], "e": None}
    assert dict(runs.told_in_words(told)) == {
        "cpus": "2",
        "a.b": "0.1235",
        "a.c": "",
        "d": "x, 1",
        "e": "",
    }


def test_an_environment_of_a_stranger_is_cut_short() -> None:
    assert len([*runs.told_in_words({str(each): each for each in range(10_000)})]) == runs.MAX_TOLD


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text()
    | st.sampled_from([made.HOSTILE, "tensorwire", "own", 0, 1e18, -1]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(found: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to everything in a JSON object."""
    if isinstance(found, dict):
        inner = list(found.items())
    else:
        inner = list(enumerate(found)) if isinstance(found, list) else []
    return [here, *(way for name, each in inner for way in places(each, (*here, name)))]


WAYS = places(GOOD)[1:]


@settings(max_examples=40)
@given(st.sampled_from(WAYS), ANY)
def test_a_changed_run_is_refused_or_shown(way: tuple[Any, ...], value: Any) -> None:
    copy = json.loads(json.dumps(GOOD))
    target = copy
    for name in way[:-1]:
        target = target[name]
    target[way[-1]] = value
    try:
        found = parse(json.dumps(copy).encode(), "run.json")
    except ValueError:
        return
    with patch("plotly.offline.get_plotlyjs", lambda: ""):
        text = page.page([*found, *parse(json.dumps(GOOD).encode(), "other.json")])
    assert text.encode().endswith(b"</html>")
    assert made.HOSTILE not in text


@given(st.binary())
def test_any_bytes_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse(text, "run.json")
