# SPDX-License-Identifier: Apache-2.0
"""The case ``mirrored``: what is trained, and what is found when it goes wrong; real workers."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest

from tensorwire.bench.harness.control import AgentError
from tensorwire.bench.harness.measure import WrongAnswerError
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.suites.tensorflow import mirrored
from tensorwire.bench.suites.tensorflow.cases import MIRRORED, work
from tensorwire.bench.suites.tensorflow.cluster import Workers
from tensorwire.bench.suites.tensorflow.contender import PathError
from tensorwire.bench.suites.tensorflow.suite import LIMIT, Options, Steps

SMALL = mirrored.whole(16 << 10)
SHM = Entry("tensorwire", "shm")
needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow")


def test_variables_are_about_as_large_as_asked_for() -> None:
    assert mirrored.whole(96 << 20) == 96 << 20
    for size in (1 << 20, 6 << 20, 64 << 20):
        assert abs(mirrored.whole(size) - size) < size / 20
        assert mirrored.whole(mirrored.whole(size)) == mirrored.whole(size)


def test_only_there_is_a_limit_and_workers_have_processes_of_their_own() -> None:
    cases = ["tensor", MIRRORED]
    suite = Steps.of(Options(["shm"], cases, [4], [4], 4, 4, 16 << 10, 1, 0.1))
    tensor, training = suite.works
    assert training == work(MIRRORED, SMALL)
    assert suite.entries == [Steps.baseline, SHM, LIMIT]
    assert [suite.duty(entry) for entry in suite.entries] == [
        [tensor, training],
        [tensor, training],
        [training],
    ]
    assert suite.room(tensor) != suite.room(training)
    without = Steps.of(Options(["shm"], ["tensor"], [4], [4], 4, 4, 16 << 10, 1, 0.1))
    assert LIMIT not in without.entries


@needs_tensorflow
@pytest.mark.timeout(120)
def test_a_worker_that_has_not_heard_of_the_others_is_found() -> None:
    """It applies its own gradients: right for one worker, and wrong for two."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    first, second = (
        mirrored.Training(tf, tf.distribute.get_strategy(), place, SMALL) for place in range(2)
    )
    first.check([0])
    second.check([1])
    with pytest.raises(WrongAnswerError, match="after a step matrix 0 is wrong by"):
        first.check([0, 1])
    first.check([0])
    before = first.checksum()
    assert before != second.checksum()
    first.step()
    assert before != first.checksum()
    first.check([0])
    assert before == first.checksum()


class Told(Workers):
    """Workers whose answers are made up: the checksums of their variables after each visit."""

    def __init__(self, entry: Entry, checksums: tuple[int, int]) -> None:
        super().__init__(entry, [], [{"path": entry.transport, "note": ""}])
        self._checksums = checksums

    def _ask(self, message: dict[str, Any], limit: float) -> list[dict[str, Any]]:
        if "counts" in message:
            return [{"counts": {}, "checksum": each} for each in self._checksums]
        return [{"nanoseconds": [1000] * 3, "cpu_seconds": 1.0, "ways": []}] * 2


def test_workers_whose_variables_differ_are_found() -> None:
    training, grpc = work(MIRRORED, SMALL), Steps.baseline
    assert Told(grpc, (5, 5)).visit(training, 0.0).path == "grpc"
    with pytest.raises(AgentError, match="other variables"):
        Told(grpc, (5, 6)).visit(training, 0.0)
    assert Told(LIMIT, (5, 6)).visit(training, 0.0).path == "none"
    with pytest.raises(PathError, match="not loaded"):
        Told(SHM, (5, 5)).visit(training, 0.0)


@needs_tensorflow
@pytest.mark.timeout(300)
def test_real_workers() -> None:
    training = work(MIRRORED, SMALL)
    results = Steps([SHM], [training], rounds=2, seconds=0.001).measure()
    assert results.notes == []
    visits = results.visits[SHM, training]
    assert [visit.path for visit in visits] == ["shm", "shm"]
    assert all(visit.calls >= 3 and visit.cpu_seconds > 0 for visit in visits)
