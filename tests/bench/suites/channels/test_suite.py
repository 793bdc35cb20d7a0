# SPDX-License-Identifier: Apache-2.0
"""Trainings over each channel: what their figures are made of; and real ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tensorwire.bench.contenders.channels.all_reduce import BUCKET_BYTES, Buckets
from tensorwire.bench.harness.measure import Visit, WrongAnswerError
from tensorwire.bench.harness.rows import Report, Row
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.suite import SuiteError
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.channels import suite
from tensorwire.bench.suites.channels.agent import Driver
from tensorwire.bench.suites.channels.compute import (
    Layers,
    products_on_one_core,
    products_within,
)
from tensorwire.bench.suites.channels.contender import Trainer, find
from tensorwire.bench.suites.channels.suite import Channels
from tensorwire.bench.suites.collectives.contender import Meeting
from tensorwire.cli import app


def command(*arguments: str) -> Any:
    return CliRunner().invoke(
        app, ["bench", "channels", *arguments], env={"COLUMNS": "250", "TERM": "dumb"}
    )


def test_gradients_share_buckets_and_no_gradient_is_in_two() -> None:
    large = BUCKET_BYTES // 4
    buckets = Buckets([3, large - 3, 1, 2 * large, 5])
    assert [array.size for array in buckets.arrays] == [large, 1, 2 * large, 5]
    for number, gradient in enumerate(buckets.gradients):
        gradient.fill(number)
    assert np.array_equal(np.unique(buckets.arrays[0]), [0, 1])
    assert [array[0] for array in buckets.arrays[1:]] == [2, 3, 4]


class WrongTrainer(Trainer):
    path = "memory"

    def __init__(self, result: float) -> None:
        self.array = np.full(5, result, np.float32)

    def gradients(self) -> list[Any]:
        return [np.zeros(5, np.float32)]

    def average(self, gradients: Any) -> list[Any]:
        assert (gradients[0] == 2).all(), "rank 1 gives twos"
        return [self.array]


def test_wrong_averages_are_found() -> None:
    meeting = Meeting(1, 3, "", 1.0)  # ranks give 1, 2 and 3
    Driver(WrongTrainer(2.0), meeting, Layers(1)).open()
    with pytest.raises(WrongAnswerError, match="expected 2"):
        Driver(WrongTrainer(6.0), meeting, Layers(1)).open()


def test_computing_takes_what_is_asked_for() -> None:
    assert products_within(0) == 0
    assert 1 <= products_within(0.001) < products_within(10.0)
    assert products_on_one_core(0.001) >= 1


def test_a_rank_that_cannot_compute_is_an_error_of_the_suite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(SuiteError, match="exit status 1"):
        Channels([], [], 1, 0.1).prepare()


class FakeRanks:
    note = ""

    def __init__(self, entry: Entry, step_us: float) -> None:
        self.path = entry.transport
        self.step_us = step_us

    def visit(self, work: Work, seconds: float) -> Visit:
        return Visit(self.step_us, self.step_us, 10, self.step_us / 1e5, 0.5, self.path)


class FakeChannels(Channels):
    def start_in(self, entry: Entry, room: Hashable) -> nullcontext[FakeRanks]:
        assert isinstance(room, int)
        step = 1000.0 * room * (4 if entry.contender == "grpcio" else 1)
        return nullcontext(FakeRanks(entry, step))


def test_images_and_efficiency() -> None:
    options = suite.Options("lenet", [1, 2], 8, 0.0, ["nothing", "grpcio"], 2, 0.1, [])
    found, complete = FakeChannels.of(options).run()
    assert complete
    assert Report.from_json(json.loads(json.dumps(found.to_json()))) == found
    details = {(each["contender"], each["ranks"]): each for each in found.details["rows"]}
    rows = {(row.contender, row.callers): row for row in found.rows}
    assert rows["nothing", 1].items_per_s == 8000
    assert rows["grpcio", 2].items_per_s == 2000
    assert details["nothing", 1]["efficiency"] == 1
    assert details["nothing", 2]["efficiency"] == 0.5
    assert details["grpcio", 2]["efficiency"] == 0.125
    assert rows["nothing", 2].ratio == 4


@pytest.mark.timeout(120)
def test_the_command_trains() -> None:
    done = command(
        *("--model", "softmax", "--ranks", "2", "--peers", "grpcio,ring", "--compute", "0"),
        *("--rounds", "1", "--seconds", "0.001", "--json"),
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    found = {(row["contender"], row["transport"], row["callers"]) for row in report["rows"]}
    ways = (("nothing", "none"), ("grpcio", "grpc"), ("ring", "shm"), ("ring", "tcp"))
    assert found == {(*way, 2) for way in ways}
    for row in report["rows"]:
        assert row["items_per_s"] > 0
        assert row["cpu_s_per_call"] > 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("contender", ["tensorwire", "horovod"])
def test_channels_give_averages(contender: str) -> None:
    entry, work = Entry(contender, "shm"), Work("softmax", 31400, callers=2)
    if (reason := find(contender).viable("shm")) is not None:
        pytest.skip(reason)
    with suite.start(entry, 2, work.case, 1) as ranks:
        assert ranks.path == "shm"
        assert ranks.visit(work, 0.001).calls >= 3  # which raises where an average is wrong


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
def test_a_picture_has_a_line_for_each_channel(tmp_path: Path) -> None:
    rows = [
        Row("hybrid", "shm", "lenet", 8, callers=ranks, items_per_s=10.0 * ranks)
        for ranks in (1, 2)
    ]
    path = tmp_path / "channels.svg"
    suite.plot(Report("channels", "grpcio", {}, rows, {"model": "lenet"}), path)
    assert path.read_text().startswith("<?xml")


def test_wrong_usage_is_told() -> None:
    for arguments, word in (
        (("--model", "nonsense"), "no model"),
        (("--ranks", "0"), "no number of ranks"),
        (("--peers", "nonsense"), "no contender"),
    ):
        done = command(*arguments)
        assert done.exit_code == 2
        assert word in done.output
