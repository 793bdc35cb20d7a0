# SPDX-License-Identifier: Apache-2.0
"""What travels in a replay, and into which memory: programs of NumPy, without a framework."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.graph.in_threads import replayed

from tensorwire import arrays, graph
from tensorwire.graph.messages import check


def program(
    first: Callable[[Any], Any],
    second: Callable[[Any], Any],
    value: graph.Value,
) -> graph.Program:
    return graph.Program(
        "numpy",  # type: ignore[arg-type]
        ("x",),
        ("z",),
        (
            graph.Stage("a", 0, ("x",), ("y",), lambda x: [first(x)]),
            graph.Stage("b", 1, ("y",), ("z",), lambda y: [second(y)]),
        ),
        {"y": value},
    )


def test_more_is_kept_than_the_arena_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes then goes into ordinary memory, where it is aligned as in the arena."""
    given: list[np.ndarray[Any, Any]] = []
    empty = arrays.empty

    def some(shape: Any, dtype: Any, **options: Any) -> Any:
        if len(given) >= 3:
            raise arrays.ArenaFullError("no room")
        given.append(empty(shape, dtype, **options))
        return given[-1]

    monkeypatch.setattr(arrays, "empty", some)
    made = program(lambda x: x * 2, lambda y: y[:40], graph.Value((300,), "float32"))
    steps = [{"x": np.full(300, step, np.float32)} for step in range(9)]
    found = replayed(made, tmp_path, steps)
    assert [step["z"].tolist() for step in found["b"]] == [[2.0 * step] * 40 for step in range(9)]
    assert {step["z"].ctypes.data % 64 for step in found["b"]} == {0}
    assert len(given) == 3


def test_the_order_of_axes_that_a_program_says(tmp_path: Path) -> None:
    value = graph.Value((3, 4, 5), "int32", order=(2, 0, 1))
    made = program(lambda x: x + 1, lambda y: y, value)
    x = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    (step,) = replayed(made, tmp_path, [{"x": x}])["b"]
    assert np.array_equal(step["z"], x + 1)
    assert step["z"].strides == (16, 4, 48)


@pytest.mark.parametrize(
    ("shape", "dtype", "number"),
    [
        ((2,), "float32", 1.0),
        ((1,), "int64", 1),
        ((None,), "float32", 1.0),
        ((), "int64", 2.7),
        ((), "bool", 5),
        ((), "bool", 1.0),
        ((), "int64", True),
        ((), "uint8", 256),
        ((), "int8", -129),
    ],
)
def test_numbers_of_pythons_that_are_not_as_planned(shape: Any, dtype: str, number: Any) -> None:
    with pytest.raises(graph.PlanError, match="n is not as planned: expected"):
        check(graph.Edge("n", "a", "b", shape, dtype), number)


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("bool", True),
        ("int64", -3),
        ("uint8", 255),
        ("float64", 0.1),
        ("float64", np.float64(0.1)),
        ("float32", 2),
    ],
)
def test_numbers_of_pythons_that_are(dtype: str, number: Any) -> None:
    found = check(graph.Edge("n", "a", "b", (), dtype), number)
    assert (found.shape, found.dtype) == ((), np.dtype(dtype))
    assert found == number


def test_a_number_where_an_array_was_planned_ends_its_sender(tmp_path: Path) -> None:
    made = program(lambda x: 1.0, lambda y: y * 2, graph.Value((2,), "float32"))
    found = replayed(made, tmp_path, [{"x": 0}])
    assert isinstance(found["a"], graph.PlanError)
    assert isinstance(found["b"], graph.StageLostError)
    assert "PlanError: y is not as planned" in str(found["b"])
