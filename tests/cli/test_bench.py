# SPDX-License-Identifier: Apache-2.0
"""What every command of ``tensorwire bench`` that measures has in common."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tensorwire.cli import app
from tensorwire.cli.bench import Commands

MEASURES = [name for name in Commands.summaries if name != "compare"]


@pytest.mark.parametrize("name", MEASURES)
def test_every_bench_hands_over_in_every_form(name: str) -> None:
    group: Any = typer.main.get_command(app)
    options = {option for each in group.load("bench").load(name).params for option in each.opts}
    assert {"--output", "--csv", "--plot", "--json", "--rounds", "--seconds"} <= options


@pytest.mark.parametrize("name", MEASURES)
def test_every_bench_hands_over_the_file_for_its_rows(name: str, tmp_path: Path) -> None:
    """Which is looked at before anything is measured."""
    path = tmp_path / "missing" / "rows.csv"
    done = CliRunner().invoke(app, ["bench", name, "--csv", str(path)], env={"COLUMNS": "250"})
    assert done.exit_code == 2, done.output
    assert "--csv" in done.output


@pytest.mark.timeout(120)
def test_rows_of_a_queue_are_lines(tmp_path: Path) -> None:
    """Of a suite whose reports have no details of rows."""
    report, lines = tmp_path / "report.json", tmp_path / "rows.csv"
    quick = ("--sizes", "1K", "--transport", "tcp", "--peers", "none", "--rounds", "1")
    files = ("--output", str(report), "--csv", str(lines))
    done = CliRunner().invoke(app, ["bench", "queue", *quick, "--seconds", "0.01", *files])
    assert done.exit_code == 0, done.output
    with lines.open() as file:
        written = list(csv.DictReader(file))
    assert [each["contender"] for each in written] == ["grpcio", "tensorwire"]
    assert float(written[1]["p50_us"]) > 0
