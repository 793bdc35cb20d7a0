# SPDX-License-Identifier: Apache-2.0
"""Queues side by side: what a reader accepts, and real ones."""

from __future__ import annotations

import json
from collections.abc import Hashable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tensorwire.bench.harness.measure import Visit, WrongAnswerError
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.work import Array, Work, payload
from tensorwire.bench.report.runs import parse
from tensorwire.bench.report.speed import ratio
from tensorwire.bench.suites.queue.agent import COMPARED, Reader
from tensorwire.bench.suites.queue.contender import Consumer, find, names
from tensorwire.bench.suites.queue.producers import END
from tensorwire.bench.suites.queue.suite import Options, Queues
from tensorwire.cli import app


def command(*arguments: str) -> Any:
    return CliRunner().invoke(
        app, ["bench", "queue", *arguments], env={"COLUMNS": "250", "TERM": "dumb"}
    )


class Given(Consumer):
    path = "memory"

    def __init__(self, items: list[Array]) -> None:
        self.items = items

    def get(self) -> Array:
        return self.items.pop(0)


@pytest.mark.parametrize("size", [1 << 10, 2 * COMPARED])
def test_a_reader_finds_what_is_wrong(size: int) -> None:
    wrong = payload(size)
    wrong[-1] += 1
    reader = Reader(Given([payload(size), END, wrong, np.zeros(7, np.float32)]), size)
    assert reader.read()
    assert not reader.read()
    with pytest.raises(WrongAnswerError, match="never put"):
        reader.read()
    with pytest.raises(WrongAnswerError, match="28 bytes"):
        reader.read()


def test_contenders() -> None:
    assert names() == ["grpcio", "multiprocessing", "tensorwire", "torch"]
    assert find("tensorwire").transports == ("shm", "tcp")
    with pytest.raises(ValueError, match="no contender is called 'redis'"):
        find("redis")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sizes", "0"], "at least 8"),
        (["--peers", "none,torch"], "at the same time"),
        (["--peers", "redis"], "no contender"),
        (["--transport", "auto"], "is none of shm, verbs, tcp"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str) -> None:
    result = command(*arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_items_of_torch_are_made_where_its_queue_would_copy_them() -> None:
    """As ours are made in the arena."""
    pytest.importorskip("torch")
    from tensorwire.bench.contenders.queue.torch import _Producer

    came: list[Any] = []
    producer = _Producer(SimpleNamespace(put=came.append))
    array = producer.empty(4)
    array[...] = payload(16)
    producer.put(array)
    producer.put(END)
    assert [item.is_shared() for item in came] == [True, False]
    assert np.array_equal(came[0].numpy(), payload(16))


class Session:
    """Groups of items come one right after the other, from time to time."""

    note = ""

    def __init__(self, entry: Entry) -> None:
        self.path = entry.transport
        self.figures = (180.0, 4500) if entry.contender == "grpcio" else (1.5, 9000)

    def visit(self, work: Work, seconds: float) -> Visit:
        p50_us, calls = self.figures
        return Visit(p50_us, p50_us, calls, 1.0, 0.5, self.path)


class FakeQueues(Queues):
    def start_in(self, entry: Entry, room: Hashable) -> nullcontext[Session]:
        return nullcontext(Session(entry))

    def _why_not(self, entry: Entry) -> None:
        return None


@pytest.mark.parametrize("producers", [1, 3])
def test_queues_are_compared_by_items(producers: int) -> None:
    """The time of an item is that within a group."""
    suite = FakeQueues.of(Options(["shm"], [1024], producers, [], 5, 0.1))
    report, _ = suite.run()
    base, ours = report.rows
    assert (base.ratio, ours.ratio) == (1, 2)
    (run,) = parse(json.dumps(report.to_json()).encode(), "run.json")
    stock, measured = run.measured
    by = ratio(measured, stock, paired=True)
    assert by is not None
    assert by.value == 2


def test_real_queues() -> None:
    arguments = ("--sizes", "1K,1M", "--rounds", "1", "--seconds", "0.02", "--json")
    result = command(*arguments, "--transport", "shm", "--peers", "multiprocessing")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    rows = {(row["contender"], row["size"]): row for row in report["rows"]}
    assert {key[0] for key in rows} == {"grpcio", "tensorwire", "multiprocessing"}
    assert len(rows) == 6
    assert all(row["calls_per_s"] > 0 and row["cpu_s_per_gb"] > 0 for row in rows.values())
    assert rows["tensorwire", 1024]["transport"] == "shm"
    assert rows["grpcio", 1024]["ratio"] == 1
