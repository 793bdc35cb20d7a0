# SPDX-License-Identifier: Apache-2.0
"""Operations on tensors that lie in their sender's memory: none crashes or reaches the sender."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.tensorflow.conftest import (
    PLUGIN,
    PS,
    WORKER,
    Cluster,
    eventually,
    running,
    session_as_written,
)
from tests.tensorflow.test_plugin_paths import session

pytestmark = pytest.mark.timeout(300)

ROWS, COLUMNS = 64, 4096


@pytest.fixture(scope="module")
def cluster(tensorflow: Any) -> Iterator[Cluster]:
    with running({("ps", 0): PLUGIN, ("worker", 0): PLUGIN}) as started:
        yield started


def inplace(name: str) -> Any:
    def apply(tf: Any, x: Any) -> Any:
        return getattr(tf.raw_ops, name)(x=x, i=[0, 5], v=tf.ones([2, COLUMNS]) * 3.0)

    return apply


def adopt_and_update(tf: Any, x: Any) -> Any:
    """A variable takes over the buffer that was received, and is then updated in place."""
    mine = tf.compat.v1.get_variable(
        "mine", initializer=tf.zeros([ROWS, COLUMNS]), use_resource=True, trainable=False
    )
    with tf.control_dependencies([mine.assign(x)]):
        first = mine.assign_add(tf.ones([ROWS, COLUMNS]))
    with tf.control_dependencies([first]):
        rows = tf.compat.v1.scatter_add(mine, [1, 2], tf.ones([2, COLUMNS]))
    with tf.control_dependencies([rows]):
        return mine.read_value()


def momentum(tf: Any, x: Any) -> Any:
    slot, value = (
        tf.compat.v1.get_variable(
            name, initializer=tf.ones([ROWS, COLUMNS]), use_resource=True, trainable=False
        )
        for name in ("slot", "value")
    )
    applied = tf.raw_ops.ResourceApplyMomentum(
        var=value.handle, accum=slot.handle, lr=0.5, grad=x, momentum=0.9
    )
    with tf.control_dependencies([applied]):
        return value.read_value() + slot.read_value()


OPERATIONS = {
    "add": lambda _tf, x: x + 1.0,
    "relu": lambda tf, x: tf.nn.relu(x),
    "chain": lambda tf, x: tf.sqrt(tf.abs(x * 2.0 - 1.0)),
    "reshape": lambda tf, x: tf.reshape(x, [COLUMNS, ROWS]) * 2.0,
    "slice": lambda tf, x: tf.identity(x[3:11]) + 1.0,
    "unaligned slice": lambda tf, x: tf.reshape(x, [-1])[1:100_001] + 1.0,
    "matmul": lambda tf, x: tf.matmul(x, x, transpose_b=True),
    "concat and split": lambda tf, x: tf.split(tf.concat([x, x], 0), 4)[3],
    "bitcast": lambda tf, x: tf.bitcast(x, tf.int32) + 1,
    "scatter": lambda tf, x: tf.tensor_scatter_nd_add(x, [[1], [2]], tf.ones([2, COLUMNS])),
    "softmax": lambda tf, x: tf.nn.softmax(x),
    "assign": adopt_and_update,
    "momentum": momentum,
    "InplaceAdd": inplace("InplaceAdd"),
    "InplaceSub": inplace("InplaceSub"),
    "InplaceUpdate": inplace("InplaceUpdate"),
}


def filled_variable(tf: Any) -> tuple[Any, Any, Any]:
    """A variable, what to feed, and the operation that then makes it the variable's value."""
    variable = tf.compat.v1.get_variable(
        "v", initializer=tf.zeros([ROWS, COLUMNS]), use_resource=True
    )
    fill = tf.compat.v1.placeholder(tf.float32, [ROWS, COLUMNS])
    return variable, fill, variable.assign(fill * 1.0)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(tensorflow: Any, cluster: Cluster, name: str) -> None:
    tf = tensorflow
    before = cluster.stats("worker")["received_in_place"]
    results = []
    value = np.random.default_rng(7).standard_normal((ROWS, COLUMNS), np.float32)
    # On the worker, with the tensor received, and where the tensor is, with a copy of its own.
    for device in (WORKER, PS):
        with tf.Graph().as_default():
            with tf.device(PS):
                variable, fill, assign = filled_variable(tf)
                sent = variable.read_value()
                sent = sent if device == WORKER else tf.raw_ops.DeepCopy(x=sent)
            with tf.device(device):
                result = OPERATIONS[name](tf, sent)
            with session(tf, cluster.target("worker")) as run:
                run.run(tf.compat.v1.global_variables_initializer())
                run.run(assign, {fill: value})
                results.append([run.run(result) for _ in range(3)])
                assert (run.run(variable) == value).all(), "the sender's tensor has changed"
    for here, there in zip(*results, strict=True):
        np.testing.assert_array_equal(here, there)
    assert cluster.stats("worker")["received_in_place"] > before


@pytest.mark.parametrize("name", ["add", "relu", "InplaceAdd", "InplaceUpdate"])
def test_two_tensors_out_of_one_buffer(tensorflow: Any, cluster: Cluster, name: str) -> None:
    """An operation that writes over one of them does not show in the other."""
    tf = tensorflow
    value = np.random.default_rng(8).standard_normal((ROWS, COLUMNS), np.float32)
    before = cluster.stats("worker")["received_in_place"]
    with tf.Graph().as_default():
        with tf.device(PS):
            variable, fill, assign = filled_variable(tf)
            read = variable.read_value()
            one, other = tf.identity(read), tf.identity(read)
        with tf.device(WORKER):
            there = tf.identity(other)
            with tf.control_dependencies([there]):
                changed = OPERATIONS[name](tf, one)
            with tf.control_dependencies([changed]):
                unchanged = tf.raw_ops.DeepCopy(x=there)
        with session_as_written(tf, cluster.target("worker")) as run:
            run.run(assign, {fill: value})
            for _ in range(3):
                got, seen = run.run([changed, unchanged])
                assert not (got == value).all()
                np.testing.assert_array_equal(seen, value)
    assert cluster.stats("worker")["received_in_place"] >= before + 6


def test_a_variable_does_not_keep_what_it_was_assigned(tensorflow: Any, cluster: Cluster) -> None:
    """It is given the received tensor's buffer; its update leaves that, and ends the lease."""
    tf = tensorflow
    with tf.Graph().as_default():
        with tf.device(PS):
            sent = tf.fill([ROWS, COLUMNS], tf.compat.v1.placeholder_with_default(2.0, []))
        with tf.device(WORKER):
            mine = tf.compat.v1.get_variable(
                "kept", initializer=tf.zeros([ROWS, COLUMNS]), use_resource=True
            )
            assign = mine.assign(sent).op
            update = mine.assign_add(tf.ones([ROWS, COLUMNS])).op
        with session_as_written(tf, cluster.target("worker")) as run:
            run.run(assign)
            assert cluster.stats("ps")["arena_leased"] > 0
            run.run(update)
            eventually(lambda: cluster.stats("ps")["arena_leased"] == 0, "the lease ends")
            assert (run.run(mine) == 3.0).all()
