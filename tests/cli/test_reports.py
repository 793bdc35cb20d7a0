# SPDX-License-Identifier: Apache-2.0
"""The commands that read runs: ``report`` and ``bench compare``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bench.report import made
from typer.testing import CliRunner, Result

from tensorwire.cli import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return kept(tmp_path / "before.json", 1.0)


def kept(path: Path, factor: float) -> Path:
    path.write_bytes(made.written([*made.sweep("grpcio", 3), *made.sweep("tensorwire", factor)]))
    return path


def test_a_page_is_written(before: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run("report", str(before), str(kept(tmp_path / "after.json", 2)), "-o", str(page))
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"tensorwire report: the page is {page}\n"
    text = page.read_text()
    assert "after.json against" in text
    assert "plotly.js v" in text


def test_a_page_needs_plotly(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.bench.report.page.find_spec", lambda name: None)
    done = run("report", str(before))
    assert done.exit_code == 2
    assert "needs plotly: pip install 'tensorwire[report]'" in done.stderr


def test_a_page_that_cannot_be_written(before: Path, tmp_path: Path) -> None:
    done = run("report", str(before), "-o", str(tmp_path / "none" / "page.html"))
    assert done.exit_code == 2
    assert "there is no folder" in done.stderr
    full = tmp_path / "full.html"
    full.symlink_to("/dev/full")
    done = run("report", str(before), "-o", str(full))
    assert done.exit_code == 1
    assert f"tensorwire: cannot write to {full} (No space left on device)" in done.stderr


@pytest.mark.parametrize("command", [["report"], ["bench", "compare", "{before}"]])
def test_what_is_no_run_is_said(command: list[str], before: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema": 7}')
    words = [word.replace("{before}", str(before)) for word in command]
    done = run(*words, str(bad))
    assert done.exit_code == 2
    assert "schema 7, and this version of tensorwire reads 1" in " ".join(done.stderr.split())
    done = run(*words, str(tmp_path / "none.json"))
    assert done.exit_code == 2
    assert "cannot read" in done.stderr


@pytest.mark.parametrize(
    ("factor", "more", "code"),
    [(1.0, [], 0), (0.5, [], 0), (1.5, [], 1), (1.5, ["--limit", "60%"], 0)],
)
def test_a_regression_is_an_exit_code(
    factor: float, more: list[str], code: int, before: Path, tmp_path: Path
) -> None:
    after = str(kept(tmp_path / "after.json", factor))
    done = run("bench", "compare", str(before), after, *more)
    assert done.exit_code == code, done.output
    said = "Slower: tensorwire tcp request 8" if code else "No row of ours is slower beyond noise."
    assert said in done.stdout
    done = run("bench", "compare", str(before), after, *more, "--json")
    assert done.exit_code == code
    (found,) = json.loads(done.stdout)["comparisons"]
    assert found["regressions"] == 3 * code
    assert len(found["rows"]) == 6


def test_files_of_several_runs_are_compared_run_by_run(before: Path, tmp_path: Path) -> None:
    several = tmp_path / "several.json"
    report = json.loads(before.read_text())
    several.write_text(json.dumps([{"command": "tensorwire bench rpc", "report": report}] * 2))
    done = run("bench", "compare", str(several), str(several), "--json")
    assert done.exit_code == 0
    assert len(json.loads(done.stdout)["comparisons"]) == 2
    done = run("bench", "compare", str(before), str(several))
    assert done.exit_code == 2
    assert "1 runs are in" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["report"], "Missing argument"),
        (["bench", "compare", "{before}"], "Missing argument"),
        (["bench", "compare", "{before}", "{before}", "--limit", "much"], "is no limit"),
        (["report", "{before}", "--limit", "much"], "is no limit"),
    ],
)
def test_wrong_usage(arguments: list[str], complaint: str, before: Path) -> None:
    done = run(*(word.replace("{before}", str(before)) for word in arguments))
    assert done.exit_code == 2
    assert complaint in done.stderr
