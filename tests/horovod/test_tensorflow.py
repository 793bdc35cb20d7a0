# SPDX-License-Identifier: Apache-2.0
"""Horovod's names on TensorFlow's tensors, between processes."""

from __future__ import annotations

from importlib import import_module

import pytest

pytest.importorskip("tensorflow")

from tests.horovod import ranks


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
        assert found["gradient"] == [2.0, 2.0]
        assert found["slices"] == [[1.0, 1.0]] * 2
        assert found["adasum"] == [3.0, 3.0]
        assert found["objects"] == [{"rank": 0}, {"rank": 1}]
        assert found["object"] == [1]
        assert found["tape"][0] < 1e-6
    assert first["some"] == [False, -1, 1, True, False, [3.0], 1]
    assert second["some"] == [True, 0, 1, *[[2.0]] * 3, True, False, [3.0], [2.0], 1]
    assert first["tape"][1:] == second["tape"][1:]
    assert first["keras"] == second["keras"]
    # The learning rate grows from half to all of it, over two epochs of two batches.
    assert first["keras"][0] == pytest.approx([0.0075, 0.01])
    assert first["passes"] == second["passes"] == [[1.0, 2.0, -5.0, -4.0], [1.0, 2.0, -2.0, -1.0]]
    assert max(*first["batch_norm"], *second["batch_norm"]) < 1e-3
    assert first["alone"] == [1, 7.0, 8.0]  # two steps by two ranks, and two by one
    assert first["kept"] == [[1, 2], 3, 0, True]


@pytest.mark.timeout(120)
def test_keras_2() -> None:
    pytest.importorskip("tf_keras")
    module = "tests.horovod.keras2_programs"
    first, second = ranks.results("of_keras", 2, module, TF_USE_LEGACY_KERAS="1")
    package, said, tape, trained, batch_norm, kept = first
    assert package == "tf_keras"
    assert said == "backward_passes_per_step needs the optimizers of Keras 3"
    assert max(tape[0], second[2][0]) < 1e-6
    assert trained == second[3]
    assert trained[0] == pytest.approx([0.0075, 0.01])
    assert max(*batch_norm, *second[4]) < 1e-3
    assert kept == second[5] == [[1, 2], 3, 0, True]


@pytest.mark.parametrize("module", ["", ".callbacks", ".elastic"])
def test_keras_has_both_names_of_horovod(module: str) -> None:
    one = import_module(f"tensorwire.horovod.tensorflow.keras{module}")
    other = import_module(f"tensorwire.horovod.keras{module}")
    assert one.__all__ == other.__all__
    assert all(getattr(one, name) is getattr(other, name) for name in one.__all__)
