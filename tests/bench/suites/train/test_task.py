# SPDX-License-Identifier: Apache-2.0
"""What a worker says of an error of TensorFlow's."""

from __future__ import annotations

import pytest

from tensorwire.bench.suites.train.options import Options

tf = pytest.importorskip("tensorflow")

from tensorwire.bench.suites.train.task import explain  # noqa: E402


def test_the_sentence_of_an_error_is_found() -> None:
    text = (
        "Graph execution error:\n\nDetected at node 'a' defined at (most recent call last):\n"
        "    File \"b.py\", line 5, in <module>\nNode: 'a'\nCannot assign a device.\nmore"
    )
    error = tf.errors.InvalidArgumentError(None, None, text)
    assert explain(error, Options()) == "InvalidArgumentError: Cannot assign a device."
    assert explain(tf.errors.AbortedError(None, None, ""), Options()) == "AbortedError: "
