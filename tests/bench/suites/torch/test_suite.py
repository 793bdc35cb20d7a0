# SPDX-License-Identifier: Apache-2.0
"""Training steps of PyTorch: what their figures are made of; and real ones."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from tensorwire.bench.harness.measure import Visit, WrongAnswerError
from tensorwire.bench.harness.rows import Report
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.torch import suite, training
from tensorwire.bench.suites.torch.suite import Trainings
from tensorwire.cli import app

SMALL = training.whole(16 << 10)


def command(*arguments: str) -> Any:
    return CliRunner().invoke(
        app, ["bench", "torch", *arguments], env={"COLUMNS": "250", "TERM": "dumb"}
    )


def test_models_are_about_as_large_as_asked_for() -> None:
    for size in (6 << 20, 16 << 20, 64 << 20, 96 << 20):
        assert abs(training.whole(size) - size) < size / 20
        assert training.whole(training.whole(size)) == training.whole(size)
    weights = sum(each.numel() for each in training.model_of(SMALL).parameters())
    assert 4 * weights == SMALL


class Ranks:
    """As many as torch.distributed is to tell of."""

    def __init__(self, size: int) -> None:
        self.get_world_size = lambda: size


@pytest.mark.parametrize("optimizer", sorted({way.optimizer for way in training.WAYS.values()}))
def test_a_rank_that_has_not_heard_of_the_others_is_found(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trains on its own batch: right for one rank, and wrong for two."""
    import torch

    case = next(name for name, way in training.WAYS.items() if way.optimizer == optimizer)
    for size in (1, 2):
        found = training.alone(optimizer, SMALL, training.batch_of(SMALL, 4, 0))
        monkeypatch.setattr(torch, "distributed", Ranks(size))
        if size == 1:
            training.check(case, found, SMALL, 4)
            continue
        with pytest.raises(WrongAnswerError, match=f"after a step of {case} layer 0 is wrong"):
            training.check(case, found, SMALL, 4)


def test_computing_takes_what_is_asked_for() -> None:
    assert training.rows_within(SMALL, 0) == 1
    assert 1 <= training.rows_within(SMALL, 0.001) < training.rows_within(SMALL, 10.0)


class FakeRanks:
    note = ""

    def __init__(self, entry: Entry, step_us: float) -> None:
        self.path = entry.transport
        self.step_us = step_us

    def visit(self, work: Work, seconds: float) -> Visit:
        return Visit(self.step_us, self.step_us, 10, self.step_us / 1e5, 0.5, self.path)


def test_steps_that_take_as_long_with_more_rows_do_not_become_endless_ones() -> None:
    assert training.enough(lambda rows: 0.01 * rows, 0.1) == 10
    assert training.enough(lambda rows: 0.5, 0.1) == 1
    # Up to 64 rows only noise tells them apart.
    assert (
        training.enough(lambda rows: 0.02 - 1e-4 * (rows % 3) + max(rows - 64, 0) / 800, 0.1) == 128
    )


class FakeTrainings(Trainings):
    def start(self, entry: Entry) -> nullcontext[FakeRanks]:
        assert (self.ranks, self.rows) == (2, {SMALL: 1})
        steps = {"gloo": 4000.0, "tensorwire": 1250.0, "nothing": 1000.0}
        return nullcontext(FakeRanks(entry, steps[entry.contender]))


def test_figures_are_of_gloo_and_of_the_limit() -> None:
    options = suite.Options(["ddp"], [SMALL], 2, 0.0, ["gloo"], 2, 0.1, [])
    found, complete = FakeTrainings.of(options).run()
    assert complete
    assert Report.from_json(json.loads(json.dumps(found.to_json()))) == found
    details = {each["contender"]: each["of_limit"] for each in found.details["rows"]}
    assert details == {"gloo": 0.25, "tensorwire": 0.8, "nothing": 1.0}
    assert {row.contender: row.ratio for row in found.rows}["tensorwire"] == 3.2


@pytest.mark.timeout(120)
def test_the_command_trains() -> None:
    done = command(
        *("--sizes", str(SMALL), "--compute", "0", "--peers", "none"),
        *("--rounds", "1", "--seconds", "0.001", "--json"),
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    found = {(row["contender"], row["transport"], row["case"]) for row in report["rows"]}
    ways = (("tensorwire", "shm"), ("nothing", "none"))
    assert found == {(*way, case) for way in ways for case in training.WAYS}
    for row in report["rows"]:
        assert row["size"] == SMALL
        assert row["cpu_s_per_call"] > 0


def test_wrong_usage_is_told() -> None:
    for arguments, word in (
        (("--cases", "nonsense"), "nonsense"),
        (("--sizes", "7"), "no multiple"),
        (("--peers", "nonsense"), "no contender"),
    ):
        done = command(*arguments)
        assert done.exit_code == 2
        assert word in done.output
