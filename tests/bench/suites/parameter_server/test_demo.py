# SPDX-License-Identifier: Apache-2.0
"""The demonstration: a parameter server and two clients, and what they leave behind."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from tensorwire.bench.harness.control import AgentError
from tensorwire.bench.inventories import load
from tensorwire.bench.suites.parameter_server import demo
from tensorwire.bench.suites.parameter_server.service import Joined, Parameters


@pytest.mark.parametrize(("library", "path"), [("grpcio", "grpc"), ("tensorwire", "shm")])
def test_pulls_and_pushes_add_up(library: str, path: str) -> None:
    outcome = demo.run(library, "lenet", seconds=0.2)
    assert outcome.path == path
    assert outcome.steps_per_s > 0
    nbytes = 4 * sum(tensor.elements for tensor in load("lenet"))
    assert outcome.gb_per_s == pytest.approx(outcome.steps_per_s * 2 * nbytes / 1e9)
    assert outcome.copies == (0 if library == "tensorwire" else None)


def test_a_lost_push_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "GRADIENT", 2.0)  # what the processes push is another one
    with pytest.raises(RuntimeError, match="something was lost"):
        demo.run("grpcio", "trivial", seconds=0.1)


def test_arrays_survive_being_joined() -> None:
    wire = Joined([3, 1, 2])
    arrays = [np.arange(count, dtype=np.float32) for count in (3, 1, 2)]
    for sent, received in zip(arrays, wire.deserialize(wire.serialize(arrays)), strict=True):
        np.testing.assert_array_equal(sent, received)


BASE = demo.Outcome("grpcio", "grpc", 1.2345678, 1.3456789, 2.0, 0.4, None)
OURS = demo.Outcome("tensorwire", "shm, tcp", 0.01, 0.02, 2046.0, 12.5, 0.0)


def printed(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    demo.print_table([BASE, OURS], console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_table_compares_with_the_first() -> None:
    lines = printed(80)
    assert all(len(line) <= 80 for line in lines)
    base, ours = (line.split() for line in lines[3:5])
    assert base[:4] == ["grpcio", "grpc", "1234.6", "ms"]
    assert base[-2:] == ["unknown", "1.0"]
    assert ours[-2:] == ["0.0", "1023.0"]


def test_the_table_has_no_line_that_is_too_long() -> None:
    lines = printed(66)
    assert all(len(line) <= 66 for line in lines)
    assert lines[-1] == "Without GB/s, copies: a wider terminal shows them."
    assert lines[3].split()[:4] == ["grpcio", "grpc", "1234.6", "ms"]


def test_what_runs_is_told_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "run", lambda library: {"grpcio": BASE, "tensorwire": OURS}[library])
    demo.main()
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "grpcio",
        "tensorwire",
    ]


@pytest.mark.parametrize("error", [AgentError("no answer in time"), RuntimeError("was lost")])
def test_a_failure_is_one_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(library: str) -> demo.Outcome:
        raise error

    monkeypatch.setattr(demo, "run", fail)
    with pytest.raises(SystemExit, match=f"^tensorwire: grpcio: {error}$"):
        demo.main()


def test_the_service_applies_gradients() -> None:
    wire = Joined([2])
    service = Parameters(wire, [2])
    service.push([np.array([1, 2], np.float32)], None)  # type: ignore[arg-type]
    assert wire.deserialize(service.pull(b"", None))[0].tolist() == [1, 2]  # type: ignore[arg-type]
