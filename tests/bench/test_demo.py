# SPDX-License-Identifier: Apache-2.0
"""The demonstration: a parameter server and two clients, and what they leave behind."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwire.bench import demo
from tensorwire.bench.inventories import load
from tensorwire.bench.parameter_server import Joined, Parameters


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


def test_the_table_compares_with_the_first() -> None:
    base = demo.Outcome("grpcio", "grpc", 0.2, 0.3, 2.0, 0.4, None)
    ours = demo.Outcome("tensorwire", "shm", 0.01, 0.02, 30.0, 6.0, 0.0)
    table = demo.table([base, ours])
    assert list(table.columns[-1].cells) == ["1.0", "15.0"]
    assert list(table.columns[-2].cells) == ["unknown", "0.0"]


def test_the_service_applies_gradients() -> None:
    wire = Joined([2])
    service = Parameters(wire, [2])
    service.push([np.array([1, 2], np.float32)], None)  # type: ignore[arg-type]
    assert wire.deserialize(service.pull(b"", None))[0].tolist() == [1, 2]  # type: ignore[arg-type]
