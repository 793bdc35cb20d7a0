# SPDX-License-Identifier: Apache-2.0
"""Horovod's names on TensorFlow's tensors, between processes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tensorflow")

from tests.horovod import ranks

# What Horovod's gradients are, of each loss: those of the tensor that has 3 rows on rank 0 and 2 on
# rank 1, and those of the one that has 3 on both.
GRADIENTS: list[list[list[float] | None]] = [
    [[1.5, 3.0, 4.5, 6.0, 7.5], None],
    # The first row of each rank is in the third tensor of its group, too.
    [[1.5 + 4.5, 3.0, 4.5, 6.0 + 9.0, 7.5], [3.0, 6.0, 9.0, 12.0, 15.0, 18.0]],
    [None, [0.0, 0.0, 0.0, 1.5, 3.0, 4.5]],
    [[1.0, 2.0, 4.0, 2.0, 3.0], None],
    [None, [1.0, 2.0, 2.0] * 2],
    [None, [0.5, 1.0, 1.0] * 2],
    [None, [4.0, 8.0, 8.0] * 2],
    [[1.0, 0.0, 0.0, 1.0, 0.0], None],
    [None, [1.5, 3.0, 4.5] * 2],
]


@pytest.mark.timeout(120)
def test_gradients_go_through_operations() -> None:
    for rank, found in enumerate(
        ranks.results("gradients", 2, "tests.horovod.tensorflow_programs")
    ):
        rows = [slice(3 * rank, 5 if rank else 3), slice(3 * rank, 3 * rank + 3)]
        wanted = [
            [each and each[mine] for each, mine in zip(two, rows, strict=True)] for two in GRADIENTS
        ]
        assert found["eager"] == found["function"] == wanted
        # Of all results of a function at once: what has no part in one has a gradient of zero.
        zeros = [[0.0] * (3 - rank), [0.0] * 3]
        assert found["of a function"] == [
            [each or none for each, none in zip(two, zeros, strict=True)] for two in wanted
        ]
        assert found["twice"] == [[3.0] * (3 - rank)] * 2
        assert found["refused"] == "no gradient goes through a reducescatter of op max"
        variables, said = found["graph"]
        assert variables == [[2.0, 2.0], [3.0, 3.0]]
        assert "call hvd.broadcast_variables()" in said


@pytest.mark.timeout(120)
def test_deterministic_jobs_have_the_same_bits_with_any_table(tmp_path: Path) -> None:
    plain, tuned, *deterministic = ranks.bits(tmp_path, "tests.horovod.tensorflow_programs")
    assert tuned != plain  # else the table shows nothing
    assert deterministic == [plain] * 2


def assert_local_layers(found: dict[str, Any], rank: int, passes: int) -> None:
    mine, average = rank + 1.0, 1.5
    assert found["tape"] == [[average, mine / 2], [average, mine]]
    # Of several passes the sums.
    assert found["optimizer"] == [
        [1.0 - each * average, 1.0 - each * mine / 2] for each in range(1, passes + 1)
    ]
    assert "of local_layers has no weights yet: build it first" in found["refused"]


def assert_best_model(first: list[Any], second: list[Any]) -> None:
    assert first[:3] == [0, True, ["best.keras"]]
    assert second[:3] == [0, None, []]
    assert "no file to save the model in: set its filepath" in first[3]
    assert second[3] == first[3]


def assert_masked(found: list[list[Any]]) -> None:
    wanted = [[9 / 5, 2.56, True], [1.0, 0.0, True], [0.0, 0.0, True]]
    assert found == [pytest.approx(each, abs=1e-5) for each in wanted]


@pytest.mark.timeout(120)
def test_tensorflow_and_keras() -> None:
    first, second = ranks.results("everything", 2, "tests.horovod.tensorflow_programs")
    for rank, found in enumerate((first, second)):
        wanted = [
            [1.5, 2.5],
            [3.0, 5.0],
            [1.0, 2.0, 2.0, 3.0],
            [2.0, 3.0],
            [[3.0], [5.0]][rank],
            [[1.0, 2.0], [2.0, 3.0]][rank],
            [1, 1],
            4.0,
            [1.0, 3.0],
        ]
        assert found["eager"] == found["function"] == wanted
        assert (
            found["reduced"]
            == found["reduced in a function"]
            == [
                *([[3.0, 5.0]] * 2),
                [2.0, 3.0],
                [1.0, 2.0],
                [2.0, 3.0],
                [2.0, 6.0],
                [1.0, 2.0],
                [2.0, 6.0],
            ]
        )
        assert [each.partition(",")[0] for each in found["refused"]] == [
            "bools have no average",
            *["tensors of complex64 are not supported"] * 2,
            "tensors of object are not supported",
            "a tensor without axes has no rows to give",
        ]
        assert found["gradient"] == [2.0, 2.0]
        assert found["slices"] == [[1.0, 1.0]] * 2
        assert found["adasum"] == [3.0, 3.0]
        assert found["objects"] == [{"rank": 0}, {"rank": 1}]
        assert found["object"] == [1]
        assert found["tape"][0] < 1e-6
        assert_local_layers(found["local layers"], rank, passes=2)
        assert_masked(found["masked"])
    assert first["some"] == [False, -1, 1, True, False, [3.0], 1]
    assert second["some"] == [True, 0, 1, *[[2.0]] * 3, True, False, [3.0], [2.0], 1]
    assert first["tape"][1:] == second["tape"][1:]
    assert first["keras"] == second["keras"]
    # The learning rate grows from half to all of it, over two epochs of two batches.
    assert first["keras"][0] == pytest.approx([0.0075, 0.01])
    assert_best_model(first["best"], second["best"])
    assert first["passes"] == second["passes"] == [[1.0, 2.0, -5.0, -4.0], [1.0, 2.0, -2.0, -1.0]]
    assert max(*first["batch_norm"], *second["batch_norm"]) < 1e-3
    assert first["alone"] == [1, 7.0, 8.0]  # two steps by two ranks, and two by one
    assert first["kept"] == [[1, 2], 3, 0, True]


@pytest.mark.timeout(120)
def test_keras_2() -> None:
    pytest.importorskip("tf_keras")
    module = "tests.horovod.keras2_programs"
    first, second = ranks.results("of_keras", 2, module, TF_USE_LEGACY_KERAS="1")
    package, said, tape, trained, batch_norm, kept, local_layers, best, masked = first
    assert package == "tf_keras"
    assert said == "backward_passes_per_step needs the optimizers of Keras 3"
    assert max(tape[0], second[2][0]) < 1e-6
    assert trained == second[3]
    assert trained[0] == pytest.approx([0.0075, 0.01])
    assert max(*batch_norm, *second[4]) < 1e-3
    assert_masked(masked)
    assert_masked(second[8])
    assert_local_layers(local_layers, 0, passes=1)
    assert_local_layers(second[6], 1, passes=1)
    assert_best_model(best, second[7])
    assert kept == second[5] == [[1, 2], 3, 0, True]


def rates(**how: Any) -> list[float]:
    """Of two batches of each of three epochs; 3 is what it is before."""
    made = import_module("tensorwire.horovod.tensorflow.keras").callbacks
    callback = made.LearningRateScheduleCallback(2.0, **how)
    optimizer = SimpleNamespace(learning_rate=3.0)
    callback.set_model(SimpleNamespace(optimizer=optimizer))
    found = []
    for epoch in range(3):
        callback.on_epoch_begin(epoch)
        for batch in range(2):
            callback.on_train_batch_begin(batch)
            found.append(optimizer.learning_rate)
    return found


def test_a_constant_multiplier_is_a_decay() -> None:
    assert rates(multiplier=0.25, start_epoch=1) == [3.0, 3.0, 2.0, 2.0, 0.5, 0.5]
    each_batch = rates(multiplier=0.25, end_epoch=2, staircase=False, steps_per_epoch=2)
    assert each_batch == [2.0, 1.0, 0.5, 0.25, 0.25, 0.25]
    assert rates(multiplier=lambda epoch: epoch) == [0.0, 0.0, 2.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize("module", ["", ".callbacks", ".elastic"])
def test_keras_has_both_names_of_horovod(module: str) -> None:
    one = import_module(f"tensorwire.horovod.tensorflow.keras{module}")
    other = import_module(f"tensorwire.horovod.keras{module}")
    assert one.__all__ == other.__all__
    assert all(getattr(one, name) is getattr(other, name) for name in one.__all__)
