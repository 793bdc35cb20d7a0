# SPDX-License-Identifier: Apache-2.0
"""``tensorwire tune``: what is chosen of figures, which rules that makes, and a real run."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tensorwire import collective, transports
from tensorwire.bench.harness.files import keep
from tensorwire.bench.harness.rows import Report, Row
from tensorwire.bench.suites.collectives import tuning
from tensorwire.bench.suites.collectives.tuning import Choice, choices, rules, table
from tensorwire.bench.suites.collectives.ways import CASES, FOREVER, WAYS, rule
from tensorwire.cli import app


def report(*figures: tuple[str, str, int, float, str]) -> Report:
    """Of contender, case, size, time and the way that was taken."""
    rows = [
        Row(contender, contender.split("-")[1], case, size, p50_us=p50)
        for contender, case, size, p50, _ in figures
    ]
    return Report("tune", "", {}, rows, {"rows": [{"ways": [way]} for *_, way in figures]})


def test_another_way_is_chosen_where_it_is_clearly_faster() -> None:
    found = choices(
        report(
            ("tensorwire-shm-untuned", "all_gather", 64, 10.0, "one_step"),
            ("tensorwire-shm-one_step", "all_gather", 64, 9.0, "one_step"),
            ("tensorwire-shm-stage", "all_gather", 64, 9.8, "stage"),
            ("tensorwire-shm-untuned", "all_gather", 4096, 10.0, "one_step"),
            ("tensorwire-shm-stage", "all_gather", 4096, 8.0, "stage"),
            ("tensorwire-shm-in_place", "all_gather", 4096, 1.0, "stage"),  # could not be had
        ),
        ranks=4,
    )
    assert found == [
        Choice("all_gather", "shm", 4, 64, 16, "one_step", 10.0, "one_step", 10.0),
        Choice("all_gather", "shm", 4, 4096, 1024, "one_step", 10.0, "stage", 8.0),
    ]


def choice(nbytes: int, way: str, default: str = "pairwise") -> Choice:
    return Choice("all_reduce", "tcp", 2, nbytes, nbytes, default, 2.0, way, 1.0)


def test_rules_change_between_sizes_and_hold_for_all_that_is_large() -> None:
    run = [choice(1 << 20, "ring"), choice(8, "direct"), choice(64, "direct"), choice(4096, "ring")]
    assert [line.split() for line in rules(run)] == [
        ["all_reduce", "tcp", "2", "512", "direct"],
        ["all_reduce", "tcp", "2", str(FOREVER), "ring"],
    ]
    assert rules([choice(8, "direct", "direct"), choice(4096, "ring", "ring")]) == []
    (small,) = rules([choice(8, "ring")])
    assert small.split()[3] == "8"


def test_a_table_keeps_what_was_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "collectives.table"
    keep(path, table(path, [choice(8, "ring")]))
    old = "# a comment\nall_reduce memory 2 5 stage\nnonsense\nreduce memory two 5 stage\n"
    old += "all_reduce messages 2 5 ring\n"  # a table of before had that for all transports
    path.write_text(path.read_text() + old)
    keep(path, table(path, [choice(16, "direct")]))
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    assert lines == [
        ["all_reduce", "memory", "2", "5", "stage"],
        ["all_reduce", "tcp", "2", "16", "direct"],
    ]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def run_group(folder: Path) -> Any:
    def work(rank: int) -> Any:
        with collective.join(folder, rank, 2) as group:
            group.all_reduce(np.ones(2, np.float32))
            group.broadcast(np.ones(1000, np.float32))
            return group.tuned, group.statistics()

    with ThreadPoolExecutor(2) as pool:
        return next(iter(pool.map(work, range(2))))


def test_groups_take_the_table_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run_group(tmp_path / "one")[0] is False
    text = "all_reduce memory 2 8 stage\nbroadcast memory 2 4000 in_place\n"
    keep(tuning.default_path(), text)
    tuned, counts = run_group(tmp_path / "two")
    assert tuned
    assert [*counts["all_reduce"]] == ["stage"]
    assert {*counts["broadcast"]} <= {"in_place", "stage"}  # where the kernel forbids the former
    assert not caplog.records
    caplog.clear()
    keep(tuning.default_path(), text.replace("memory 2 8 stage", "messages 2 8 ring"))
    assert run_group(tmp_path / "before")[0] is False
    assert "line 1: a rule for messages names the transport" in caplog.text
    keep(tuning.default_path(), text.replace("stage", "ring"))
    assert run_group(tmp_path / "three")[0] is False
    assert "line 1: all_reduce over 'memory' cannot go by 'ring'" in caplog.text
    monkeypatch.setenv("TENSORWIRE_TUNING", "off")
    caplog.clear()
    assert run_group(tmp_path / "four")[0] is False
    assert not caplog.records
    monkeypatch.setenv("TENSORWIRE_TUNING", "table")
    with pytest.raises(ValueError, match="TENSORWIRE_TUNING"):
        run_group(tmp_path / "five")


def test_every_way_can_be_written_and_is_read_by_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        rule(case, fabric, 2, number, way)
        for fabric, ways in WAYS.items()
        for number, (way, cases) in enumerate(ways.items())
        for case in cases
    ]
    path = tmp_path / "all.table"
    keep(path, "".join(lines))
    monkeypatch.setenv("TENSORWIRE_TUNING", str(path))
    assert run_group(tmp_path / "store")[0] is True


@pytest.mark.timeout(120)
def test_the_command_measures_and_keeps_a_table(tmp_path: Path) -> None:
    path = tmp_path / "job.table"
    quick = ("--ranks", "2", "--sizes", "8", "--rounds", "1", "--seconds", "0.001")
    what = ("--cases", "broadcast", "--transports", "shm,tcp")
    done = CliRunner().invoke(
        app, ["tune", "collectives", *quick, *what, "--output", str(path), "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["table"] == str(path)
    assert found["notes"] == []
    measured = {(each["case"], each["transport"]) for each in found["choices"]}
    assert measured == {("broadcast", "shm"), ("broadcast", "tcp")}
    for each in found["choices"]:
        assert 0 < each["us"] <= each["default_us"]
    assert path.read_text().startswith("# Made by tensorwire tune collectives")


def test_wrong_usage_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    here = transports.why_not
    monkeypatch.setattr(
        transports, "why_not", lambda name: "no device" if name == "verbs" else here(name)
    )
    assert set(CASES) == {
        *("all_reduce", "reduce", "broadcast", "all_gather", "gather"),
        *("scatter", "all_to_all", "reduce_scatter"),
    }
    for arguments, word in (
        (("--ranks", "1"), "no number of ranks"),
        (("--transports", "grpc"), "none of"),
        (("--transports", "verbs"), "no device"),
        (("--cases", "barrier"), "none of"),
        (("--sizes", "0"), "at least 1"),
    ):
        done = CliRunner().invoke(app, ["tune", "collectives", *arguments])
        assert done.exit_code == 2
        assert word in done.output


@pytest.mark.parametrize("what", ["collectives", "links"])
def test_a_cache_that_cannot_be_written_is_told_first(what: str) -> None:
    done = CliRunner().invoke(app, ["tune", what], env={"XDG_CACHE_HOME": "/proc"})
    assert done.exit_code == 2
    assert "--output: cannot make the folder /proc/tensorwire" in done.output
