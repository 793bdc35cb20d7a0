# SPDX-License-Identifier: Apache-2.0
"""A run over TensorFlow clusters: its order, its failures, its figures; and a real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tensorwire.bench.harness.control import AgentError
from tensorwire.bench.harness.measure import Visit
from tensorwire.bench.harness.report import print_report
from tensorwire.bench.harness.rows import Report, Row, rows
from tensorwire.bench.harness.schedule import Entry, Progress, silent
from tensorwire.bench.harness.suite import Results
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.tensorflow import suite
from tensorwire.bench.suites.tensorflow.cases import moved, work
from tensorwire.bench.suites.tensorflow.contender import PathError
from tensorwire.bench.suites.tensorflow.suite import LAYOUT, Steps
from tensorwire.cli import app
from tensorwire.tensorflow import build

SHM, TCP = Entry("tensorwire", "shm"), Entry("tensorwire", "tcp")
WORK = work("tensor", 64)


def measure(
    asked: list[Entry], works: list[Work], rounds: int, progress: Progress = silent
) -> Results:
    return Steps(asked, works, rounds, 0.1).measure(progress)


def rows_in(results: Results) -> list[Row]:
    return rows(results.visits, results.comments, "grpc", moved)


class FakeCluster:
    note = ""

    def __init__(self, transport: str, log: list[str]) -> None:
        self.path = transport
        self.log = log
        self.fails_at: tuple[int, Exception] | None = None
        self.visits = 0

    def visit(self, work: Work, seconds: float) -> Visit:
        self.log.append(self.path)
        self.visits += 1
        if self.fails_at is not None and self.visits == self.fails_at[0]:
            raise self.fails_at[1]
        return visit_of(1000.0, path=self.path)


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeCluster]:
    log: list[str] = []
    found = {name: FakeCluster(name, log) for name in ("grpc", "shm", "tcp")}

    @contextmanager
    def start(entry: Entry) -> Iterator[FakeCluster]:
        yield found[entry.transport]

    monkeypatch.setattr(suite, "start", start)
    return found


def visit_of(
    p50: float,
    p99: float = 0.0,
    calls: int = 10,
    path: str = "shm",
    in_place: float | None = None,
) -> Visit:
    return Visit(p50, p99 or p50, calls, 1.0, cpu_seconds=0.5, path=path, in_place=in_place)


def test_each_round_visits_everyone_and_the_order_moves_on(
    clusters: dict[str, FakeCluster],
) -> None:
    results = measure([Steps.baseline, SHM, TCP], [WORK], 2)
    assert clusters["grpc"].log == ["grpc", "shm", "tcp", "shm", "tcp", "grpc"]
    assert not results.notes


@pytest.mark.parametrize("error", [AgentError("is gone"), PathError("took tcp instead")])
def test_who_fails_is_stopped_and_the_others_go_on(
    clusters: dict[str, FakeCluster], error: Exception
) -> None:
    clusters["shm"].fails_at = (2, error)
    seen: list[tuple[int, int]] = []
    results = measure(
        [Steps.baseline, SHM],
        [WORK, work("ps-step", 80)],
        3,
        lambda now, done, total: seen.append((done, total)),
    )
    assert [(row.contender, row.case) for row in rows_in(results)] == [
        ("grpc", "tensor"),
        ("grpc", "ps-step"),
    ]
    assert clusters["shm"].visits == 2
    assert str(error) in results.notes[0]
    assert seen[-1] == (12, 12)


def test_an_interrupted_run_keeps_its_figures(
    clusters: dict[str, FakeCluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def impatient() -> Iterator[Callable[[str, int, int], None]]:
        def update(now: str, done: int, total: int) -> None:
            if done == 4:
                raise KeyboardInterrupt

        yield update

    monkeypatch.setattr("tensorwire.bench.harness.handover.progress_bar", impatient)
    monkeypatch.setattr(build, "installed", lambda: SimpleNamespace(version="2.0"))
    monkeypatch.setattr(build, "plugin", lambda tensorflow: None)
    output = tmp_path / "figures.json"
    sizes = ("--cases", "tensor", "--sizes", "4,8")
    done = CliRunner().invoke(app, ["bench", "tensorflow", *sizes, "--output", str(output)])
    assert done.exit_code == 130, done.output
    assert "tensorwire bench tensorflow: 30 visits, about" in done.stderr
    assert "interrupted after 4 of 30 visits" in done.stdout
    report = json.loads(output.read_text())
    assert report["environment"]["interrupted"]
    assert [(row["contender"], row["size"]) for row in report["rows"]] == [
        ("grpc", 4),
        ("tensorwire", 4),
        ("tensorwire", 4),
    ]


def test_rows_are_medians_over_rounds() -> None:
    results = Results()
    results.visits[Steps.baseline, WORK] = [
        visit_of(8000, 9000, path="grpc"),
        visit_of(9000, 9500, path="grpc"),
    ]
    results.visits[SHM, WORK] = [
        visit_of(500, 600, calls=5, in_place=1.0),
        visit_of(1000, 2000, calls=10, in_place=0.5),
        visit_of(7000, 9000, calls=20, in_place=1.0),
    ]
    base, row = rows_in(results)
    assert base.ratio == 1
    assert base.in_place is None
    assert row == Row(
        contender="tensorwire",
        transport="shm",
        case="tensor",
        size=64,
        payload="tensor",
        reads=True,
        calls=35,
        p50_us=1000,
        p50_spread=6.5,
        p99_us=2000,
        calls_per_s=10,
        gb_per_s=10 * 64 / 1e9,
        cpu_s_per_call=0.05,
        cpu_s_per_gb=pytest.approx(0.05 / 64 * 1e9),  # type: ignore[arg-type]
        in_place=0.5,
        ratio=8.5,
        p99_ratio=4.625,
    )


def test_without_stock_there_is_no_ratio() -> None:
    results = Results()
    results.visits[SHM, WORK] = [visit_of(500)]
    assert rows_in(results)[0].ratio is None


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--transport", "grpc", "none of shm, verbs, tcp"),
        ("--cases", "pull", "none of tensor"),
        ("--sizes", "6", "multiple of 4"),
        ("--step-size", "0", "at least 4"),
        ("--output", "/nowhere/figures.json", "no folder"),
        ("--plot", "/nowhere/figures.png", "no folder"),
        ("--peers", "horovod", "no contender is called 'horovod'"),
    ],
)
def test_wrong_usage_is_code_2(option: str, value: str, why: str) -> None:
    result = command(option, value)
    assert result.exit_code == 2
    assert why in result.output


def command(*arguments: str) -> Any:
    return CliRunner().invoke(
        app, ["bench", "tensorflow", *arguments], env={"COLUMNS": "200", "TERM": "dumb"}
    )


@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow")
def test_real_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    result = command(
        *("--sizes", "4,1M", "--step-size", "2M", "--reduce-size", "400K"),
        *("--rounds", "2", "--seconds", "0.01", "--json"),
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    rows = report["rows"]
    works = [("tensor", 4), ("tensor", 1 << 20), ("ps-step", 2 << 20), ("allreduce", 400 << 10)]
    assert {(row["transport"], row["case"], row["size"]) for row in rows} == {
        (transport, *work) for transport in ("grpc", "shm", "tcp") for work in works
    }
    for row in rows:
        assert 0 < row["p50_us"] <= row["p99_us"]
        assert row["cpu_s_per_call"] > 0
        assert row["calls"] >= 6
        assert row["ratio"] > 0
    print_report(Report.from_json(report), LAYOUT, Console(width=150))
    shown = capsys.readouterr().out
    assert "ps-step 2M" in shown
    assert "TensorFlow 2." in shown
