# SPDX-License-Identifier: Apache-2.0
"""The checks of the cases: what arrives wrong is seen."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest

from tensorwire.bench.harness.measure import WrongAnswerError
from tensorwire.bench.suites.tensorflow import cases

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow"),
]


@pytest.fixture(scope="module")
def tf() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow

    return tensorflow


@pytest.mark.parametrize("elements", [1, 7, 25, 5003])
@pytest.mark.parametrize("case", ["tensor", "many", "ps-step"])
def test_right_results_pass_and_wrong_ones_do_not(
    tf: Any, monkeypatch: pytest.MonkeyPatch, case: str, elements: int
) -> None:
    monkeypatch.setattr(cases, "WORKER", "/device:CPU:0")
    monkeypatch.setattr(cases, "HOLDER", "/device:CPU:0")
    monkeypatch.setattr(cases, "MANY", 12)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        step, check = cases.CASES[case](tf, session, elements, 1)
        variables = tf.compat.v1.global_variables()
        spoil = variables[-1].assign_add(tf.one_hot(0, int(variables[-1].shape[0])))
        session.run([variable.initializer for variable in variables])
        check()
        step()
        step()
        step()
        check()
        session.run(spoil)
        with pytest.raises(WrongAnswerError, match="checksum"):
            check()
