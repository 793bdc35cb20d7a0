# SPDX-License-Identifier: Apache-2.0
"""Results for people."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tensorwire.bench.harness import environment, report
from tensorwire.bench.harness.rows import Report, Row
from tensorwire.bench.suites.rpc.suite import LAYOUT


def row(contender: str, case: str = "request", size: int = 8, **more: Any) -> Row:
    figures = {
        "p50_us": 12.3456,
        "p50_spread": 0.25,
        "p99_us": 2345.6,
        "gb_per_s": 1.5,
        "calls_per_s": 81_000.0,
        "p99_ratio": 3.0,
        "note": f"note on {contender}",
    }
    return Row(contender, "tcp", case, size, **{**figures, **more})


REPORT = Report(
    "rpc",
    "grpcio",
    {
        "cpus": 2,
        "cpu": "a [bold]CPU[/]",
        "kernel": "6.18",
        "python": "3.11",
        "versions": {},
        "load_average": 0.5,
        "congestion_control": {"default": "bbr", "same_host_links": "cubic"},
        "notes": ["nixl over shm: left out: [not installed]"],
    },
    [
        row("tensorwire", size=64 << 20),
        row("grpcio", size=64 << 20),
        row("zmq"),
        row("tensorwire", "stream", origin="published"),
        row("grpcio"),
        row("tensorwire", reads=True),
        row("tensorwire", payload="protobuf"),
    ],
)


def printed(width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    report.print_report(REPORT, LAYOUT, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_holds_every_row_and_note() -> None:
    text = printed()
    for expected in (
        *("request 8", "request 64M", "stream 8", "note on zmq", "12.3 us", "2.35 ms", "81 k"),
        *(
            "published",
            "protobuf",
            "[not installed]",
            "bbr by default",
            "cubic on tensorwire's links",
        ),
    ):
        assert expected in text


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_line_is_too_long_and_no_cell_is_cut(width: int) -> None:
    text = printed(width)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert all(len(line) <= width for line in text.splitlines())
    table = text.split("Without")[0].split("2 CPUs")[0]
    assert all(line == line.rstrip() for line in table.splitlines())
    assert "12.3 us" in text
    flat = " ".join(text.split())
    assert ("Without" in flat) == (width < 200)
    assert "note on zmq" in flat


def test_a_figure_that_is_not_there_is_an_empty_cell() -> None:
    announced = row("tensorwire", gb_per_s=None, calls_per_s=None, p99_ratio=None)
    cells = {column.name: column.cell for column in LAYOUT.columns}
    missing = ("GB/s", "msg/s", "CPU s/GB", "x grpcio", "x p99")
    assert [cells[name](announced) for name in missing] == [""] * 5
    assert cells["p50"](announced) == "12.3 us"
    assert cells["msg/s"](row("tensorwire")) == "81 k"


def test_rows_come_by_case_and_size_the_baseline_first() -> None:
    found = [(r.case, r.size, r.contender) for r in report.ordered(REPORT.rows, "grpcio")]
    assert found == [
        ("request", 8, "grpcio"),
        ("request", 8, "zmq"),
        ("request", 8, "tensorwire"),
        ("request", 8, "tensorwire"),
        ("request", 64 << 20, "grpcio"),
        ("request", 64 << 20, "tensorwire"),
        ("stream", 8, "tensorwire"),
    ]


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(0.1234, "0.123 us"), (999, "999 us"), (1000, "1 ms"), (64_123, "64.1 ms"), (2.5e6, "2.5 s")],
)
def test_durations(microseconds: float, text: str) -> None:
    assert report.duration(microseconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.00012, "1.2e-04"), (1.2345, "1.23"), (99.96, "100"), (12345, "12345")],
)
def test_significant_digits(value: float, text: str) -> None:
    assert report.significant(value) == text


def test_rates() -> None:
    assert [report.rate(value) for value in (12.0, 1200.0, 3.4e6)] == ["12", "1.2 k", "3.4 M"]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"figures.{ending}"
    report.plot(REPORT, path)
    assert path.stat().st_size > 1000


def test_figures_of_an_emulated_device_come_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "emulated_rdma", lambda: ("rxe0",))
    (note,) = environment.caveats(["tcp", "verbs"])
    assert "rxe0" in note
    assert "nothing about RDMA hardware" in note
    assert environment.caveats(["shm", "tcp"]) == []
    monkeypatch.setattr(environment, "emulated_rdma", lambda: ())
    assert environment.caveats(["verbs"]) == []


def test_how_quiet_the_host_was() -> None:
    noise = {"before": {"spin": {"median_us": 200.0, "spread": 0.04}}, "after": None}
    told = "Turns of loops that do the same were apart by 4% before (spin)."
    assert report.quiet({"noise": noise}) == told
    loud = {"before": {"spin": {"median_us": 200.0, "spread": 0.4}}, "after": None}
    assert report.quiet({"noise": loud}).startswith("This host was not quiet: turns of spin were")
    assert report.quiet({}) == ""
