# SPDX-License-Identifier: Apache-2.0
"""The demonstration: a parameter server and two clients, and what they leave behind."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tensorwire.bench.harness.control import AgentError
from tensorwire.bench.harness.rows import Report, Row
from tensorwire.bench.inventories import load
from tensorwire.bench.suites.parameter_server import demo
from tensorwire.bench.suites.parameter_server.service import Joined, Parameters


@pytest.mark.parametrize(("library", "path"), [("grpcio", "grpc"), ("tensorwire", "shm")])
def test_pulls_and_pushes_add_up(library: str, path: str) -> None:
    pull, push, step = demo.run(library, "lenet", seconds=0.2)
    nbytes = demo.bytes_of("lenet")
    assert nbytes == 4 * sum(tensor.elements for tensor in load("lenet"))
    assert [(row.case, row.transport, row.size) for row in (pull, push, step)] == [
        ("pull", path, nbytes),
        ("push", path, nbytes),
        ("step", path, 2 * nbytes),
    ]
    assert pull.p50_us
    assert push.p50_us
    assert step.calls_per_s
    assert step.gb_per_s == pytest.approx(step.calls_per_s * 2 * nbytes / 1e9)
    assert step.note == ("each byte was copied 0.0 times" if library == "tensorwire" else "")


def test_a_lost_push_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "GRADIENT", 2.0)  # what the processes push is another one
    with pytest.raises(RuntimeError, match="something was lost"):
        demo.run("grpcio", "trivial", seconds=0.1)


def test_arrays_survive_being_joined() -> None:
    wire = Joined([3, 1, 2])
    arrays = [np.arange(count, dtype=np.float32) for count in (3, 1, 2)]
    for sent, received in zip(arrays, wire.deserialize(wire.serialize(arrays)), strict=True):
        np.testing.assert_array_equal(sent, received)


def rows(library: str, path: str, pull_us: float, push_us: float, steps: float) -> list[Row]:
    return [
        Row(library, path, "pull", 100, callers=2, p50_us=pull_us),
        Row(library, path, "push", 100, callers=2, p50_us=push_us),
        Row(library, path, "step", 200, callers=2, calls_per_s=steps, gb_per_s=steps / 1e3),
    ]


BASE = rows("grpcio", "grpc", 1234567.8, 1345678.9, 2.0)
OURS = rows("tensorwire", "shm", 10000.0, 20000.0, 2046.0)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "run", lambda library: {"grpcio": BASE, "tensorwire": OURS}[library])
    monkeypatch.setattr("tensorwire.bench.harness.noise.check", dict)


def test_ratios_are_to_the_first() -> None:
    ratios = [row.ratio for row in demo.compared(OURS, BASE)]
    assert ratios == pytest.approx([123.45678, 67.283945, 1023.0])
    assert [row.ratio for row in demo.compared(BASE, BASE)] == [1.0] * 3


@pytest.mark.usefixtures("measured")
def test_the_object_is_that_of_a_bench(capsys: pytest.CaptureFixture[str]) -> None:
    demo.main(json_=True)
    report = Report.from_json(json.loads(capsys.readouterr().out))
    assert report.rows == [*demo.compared(BASE, BASE), *demo.compared(OURS, BASE)]
    assert (report.suite, report.baseline) == ("demo-rpc", "grpcio")
    assert report.environment["roles"] == {"grpcio": "peer", "tensorwire": "own"}


@pytest.mark.usefixtures("measured")
def test_the_table_compares_with_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    demo.main()
    lines = capsys.readouterr().out.splitlines()
    ours = [line.split() for line in lines if line.split()[:2] == ["tensorwire", "shm"]]
    assert [line[2:] for line in ours] == [
        ["10", "ms", "123"],
        ["20", "ms", "67.3"],
        ["2046", "2.05", "1023"],
    ]


@pytest.mark.usefixtures("measured")
def test_what_runs_is_told_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    demo.main()
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "grpcio",
        "tensorwire",
    ]


@pytest.mark.parametrize("error", [AgentError("no answer in time"), RuntimeError("was lost")])
def test_a_failure_is_one_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(library: str) -> list[Row]:
        raise error

    monkeypatch.setattr(demo, "run", fail)
    monkeypatch.setattr("tensorwire.bench.harness.noise.check", dict)
    with pytest.raises(SystemExit, match=f"^tensorwire: grpcio: {error}$"):
        demo.main()


def test_the_service_applies_gradients() -> None:
    wire = Joined([2])
    service = Parameters(wire, [2])
    service.push([np.array([1, 2], np.float32)], None)  # type: ignore[arg-type]
    assert wire.deserialize(service.pull(b"", None))[0].tolist() == [1, 2]  # type: ignore[arg-type]
