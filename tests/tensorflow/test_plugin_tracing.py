# SPDX-License-Identifier: Apache-2.0
"""The arena for what is sent only: the sites that allocate it are found out in the first steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.tensorflow.conftest import (
    PAIR,
    PS,
    WORKER,
    Cluster,
    running,
    session_as_written,
)

pytestmark = pytest.mark.timeout(300)

JOBS = ("ps", "worker")
VARIABLES = 3
SHAPE = (64, 1024)
NBYTES = 4 * 64 * 1024
STEPS = 8
COUNTERS = ("served_copied_bytes", "served_lent_bytes", "allocated_in_arena")
# A static edge is copied in the first step. So is a variable in the second: its update has
# allocated it anew, at a site that was not known yet.
SETTLED = 2


def start_value(index: int) -> Any:
    return np.random.default_rng(index).standard_normal(SHAPE).astype(np.float32)


def training(tf: Any) -> tuple[Any, Any, Any]:
    """Variables on the ps; the worker reads them and sends gradients, which the ps subtracts. Both
    also allocate as much that stays where it is. Gives the initialiser, a step, and a read."""
    starts, steps, variables = [], [], []
    for index in range(VARIABLES):
        with tf.device(PS):
            variable = tf.compat.v1.get_variable(
                f"v{index}", SHAPE, tf.float32, use_resource=True, trainable=False
            )
            filled = tf.compat.v1.placeholder(tf.float32, SHAPE, name=f"start{index}")
            starts.append(
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.identity(filled))
            )
            value = variable.read_value()
        with tf.device(WORKER):
            # The product is written over the sum, whose memory it gets.
            gradient = tf.add(value, 1.0) * 0.5
            unsent = tf.reduce_sum(tf.exp(-tf.abs(value)))
        with tf.device(PS):
            update = tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=gradient)
            also_unsent = tf.reduce_sum(tf.abs(gradient))
        steps += [update, unsent, also_unsent]
        variables.append(variable)
    with tf.device(PS):
        read = [tf.reduce_max(tf.bitcast(v.read_value(), tf.int32), axis=0) for v in variables]
    return starts, steps, read


def counted(cluster: Cluster, name: str) -> list[int]:
    return [cluster.stats(job)[name] for job in JOBS]


def differences(after: list[int], before: list[int]) -> list[int]:
    return [a - b for a, b in zip(after, before, strict=True)]


@pytest.mark.parametrize("late", [False, True])
def test_only_what_is_sent_is_born_in_the_arena(tensorflow: Any, late: bool) -> None:
    tf = tensorflow
    cluster = Cluster(PAIR, {"TENSORWIRE_TF_ARENA": "traced"})
    try:
        for task in PAIR:
            cluster.start([task], late=late)
        cluster.wait_ready()
        with tf.Graph().as_default():
            starts, steps, read = training(tf)
            feeds = {f"start{index}:0": start_value(index) for index in range(VARIABLES)}
            with session_as_written(tf, cluster.target("worker")) as run:
                run.run(starts, feeds)
                copied, lent, born = [], [], []
                for _ in range(STEPS):
                    before = [counted(cluster, name) for name in COUNTERS]
                    run.run(steps)
                    after = [counted(cluster, name) for name in COUNTERS]
                    each = [differences(a, b) for a, b in zip(after, before, strict=True)]
                    copied.append(each[0])
                    lent.append(each[1])
                    born.append(each[2])
                got = run.run(read)
        print("copied", copied, "lent", lent, "born", born)

        size = VARIABLES * NBYTES
        # The first step: all is copied. What is small always is.
        assert all(nbytes >= size for nbytes in copied[0])
        assert lent[0] == [0, 0]
        assert copied[1][JOBS.index("worker")] < NBYTES
        for step in range(SETTLED, STEPS):
            assert all(nbytes < NBYTES for nbytes in copied[step]), f"copies in step {step}"
            assert lent[step] == [size, size]
            # A gradient each on the worker; on the ps, a variable that was being read meanwhile.
            assert born[step][JOBS.index("worker")] == VARIABLES
            assert born[step][JOBS.index("ps")] <= VARIABLES

        for job in JOBS:
            stats = cluster.stats(job)
            assert stats["allocated_traced"] == stats["allocated_in_arena"] > 0
            assert stats["allocated_elsewhere"] == 0
            # Each variable's start and update; each gradient.
            assert VARIABLES <= stats["sites_traced"] <= 2 * VARIABLES

        for index, value in enumerate(got):
            expected = start_value(index)
            for _ in range(STEPS):
                expected -= (expected + np.float32(1)) * np.float32(0.5)
            np.testing.assert_array_equal(value, expected.view(np.int32).max(axis=0))
    finally:
        cluster.close()


def test_a_full_arena_is_no_reason_to_move_a_variable(tensorflow: Any) -> None:
    tf = tensorflow
    with running(PAIR, TENSORWIRE_TF_ARENA="traced", TENSORWIRE_BUFFER_BYTES="1M") as cluster:
        shape = (1024, 1024)  # more than the arena
        with tf.Graph().as_default():
            with tf.device(PS):
                variable = tf.compat.v1.get_variable(
                    "v", shape, tf.float32, tf.compat.v1.zeros_initializer, use_resource=True
                )
                value = variable.read_value()
            with tf.device(WORKER):
                one = tf.reduce_min(value) * 0.0 + 1.0
            with tf.device(PS):
                step = tf.raw_ops.AssignAddVariableOp(
                    resource=variable.handle, value=tf.fill(shape, one)
                )
                read = tf.reduce_mean(variable.read_value())
            with session_as_written(tf, cluster.target("worker")) as run:
                run.run(variable.initializer)
                for _ in range(STEPS):
                    run.run(step)
                assert run.run(read) == STEPS
        stats = cluster.stats("ps")
        assert stats["served_lent_bytes"] == 0
        # Each update allocates once to move away from where it began, and where it is traced; then
        # it is done in place, but for the few that find the variable still being read.
        assert 0 < stats["allocated_elsewhere"] <= STEPS // 2
