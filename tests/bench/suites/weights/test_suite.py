# SPDX-License-Identifier: Apache-2.0
"""Weight syncs under measurement: real ones of little weight, and what the table says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tensorwire.bench.harness.rows import Report
from tensorwire.bench.suites.weights.contender import find, names, shapes
from tensorwire.bench.suites.weights.suite import LAYOUT, OWN, Options, Weights
from tensorwire.cli import app

QUICK = ("--rounds", "1", "--seconds", "0.001", "--receivers", "1")


def command(*arguments: str) -> Any:
    return CliRunner().invoke(
        app, ["bench", "weights", *arguments], env={"COLUMNS": "250", "TERM": "dumb"}
    )


def test_a_gibibyte_is_one() -> None:
    found = shapes(1 << 30)
    assert len(found) == 298
    assert sum(found.values()) == pytest.approx(1 << 30, rel=0.01)
    assert min(shapes(1 << 20).values()) == 64


def test_real_syncs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "figures.json"
    done = command(
        *QUICK, "--sizes", "1M", "--peers", "none", "--cases", "copied,adopted,published",
        "--output", str(file),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    report = Report.from_json(json.loads(file.read_text()))
    assert {(row.contender, row.transport, row.case) for row in report.rows} == {
        ("tensorwire", "shm", "copied"),
        ("tensorwire", "shm", "adopted"),
        ("tensorwire-torch", "shm", "adopted"),
        ("tensorwire", "shm", "published"),
        ("tensorwire-tcp", "tcp", "copied"),
        ("tensorwire-tcp", "tcp", "published"),
        ("tensorwire-in-place-tcp", "tcp", "copied"),
        ("tensorwire-in-place-tcp", "tcp", "published"),
        ("memcpy", "memory", "copied"),
    }
    assert report.details["receivers"] == 1
    assert report.details["as_others"] == {"published": "copied"}
    assert "of limit" in done.output
    assert "1 to 1" in LAYOUT.title(report)


def test_shards_and_grpcio(tmp_path: Path) -> None:
    """Four trainers have rows of each tensor. That the bytes are right, and no more than needed, is
    checked in the receivers."""
    file = tmp_path / "figures.json"
    done = command(
        *QUICK, "--sizes", "1M", "--peers", "grpcio", "--cases", "copied,resharded",
        "--transports", "shm", "--no-limits", "--output", str(file),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "x grpcio" in done.output
    rows = Report.from_json(json.loads(file.read_text())).rows
    assert {(row.contender, row.case, row.note) for row in rows} == {
        ("tensorwire", "copied", ""),
        ("tensorwire-sharded", "resharded", "4 trainers"),
        ("grpcio", "copied", ""),
    }


def test_first_versions_are_of_processes_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = command(
        *QUICK, "--sizes", "1M", "--peers", "none", "--cases", "copied,first",
        "--transports", "shm", "--no-limits", "--output", str(file),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "of steady" in done.output
    copied, first = Report.from_json(json.loads(file.read_text())).rows
    assert (copied.case, first.case, first.calls) == ("copied", "first", 1)
    assert copied.calls >= 3


@pytest.mark.parametrize(
    "arguments",
    [("--cases", "pushed"), ("--sizes", "0"), ("--peers", "none,gloo"), ("--peers", "absent")],
)
def test_wrong_usage(arguments: tuple[str, str]) -> None:
    assert command(*arguments).exit_code == 2


def test_contenders_are_found() -> None:
    assert {"gloo", "grpcio", "memcpy", "mpich", "nixl", "tensorwire"} <= set(names())
    assert find("tensorwire-tcp").transports == ("tcp",)
    with pytest.raises(ValueError, match="no contender is called"):
        find("absent")


def test_pytorch_need_not_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = "tensorwire.bench.contenders.weights.tensorwire"
    monkeypatch.setattr(f"{ours}.find_spec", lambda module: None)
    done = command(
        *QUICK, "--sizes", "1M", "--peers", "none", "--cases", "adopted", "--no-limits",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "torch is not installed" in done.output


def test_nixl_takes_part_over_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Options(["copied"], [1 << 20], 2, ["tcp"], ["nixl"], limits=False, rounds=1, seconds=1)
    entries = Weights.of(wanted).entries
    assert [str(each) for each in entries if each.contender not in OWN] == [
        "nixl over shm",
        "nixl-tcp over tcp",
    ]
    monkeypatch.setattr("tensorwire.bench.contenders.rpc.nixl.find_spec", lambda module: None)
    for each in entries[:2]:
        reason = find(each.contender).viable(each.transport)
        assert reason == "nixl is not installed: pip install nixl"
