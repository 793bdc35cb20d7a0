# SPDX-License-Identifier: Apache-2.0
"""Planned transfers whose steps or processes end early, between real servers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.tensorflow.conftest import (
    PAIR,
    PS,
    WORKER,
    Cluster,
    eventually,
    running,
    session_as_written,
)
from tests.tensorflow.planned import Counted, edge, steps_until, steps_until_planned
from tests.tensorflow.test_plugin_faults import (
    in_background,
    is_waited_for,
    session_that_loses_a_server,
)

pytestmark = pytest.mark.timeout(300)


def blocked(tf: Any) -> tuple[Any, Any, Any]:
    """What is fed, what lets a step go on that waits for the ps, and the step."""
    with tf.device(PS):
        queue = tf.queue.FIFOQueue(10, [tf.float32], [[100]])
        fed = tf.compat.v1.placeholder(tf.float32, ())
        enqueue = queue.enqueue(tf.fill([100], fed))
        value = queue.dequeue()
        other = tf.random.shuffle(tf.fill([100], 2.0))  # no constant
    with tf.device(WORKER):
        return fed, enqueue, tf.reduce_sum(tf.identity(value) * tf.identity(other))


def one_step(run: Any, fed: Any, enqueue: Any, total: Any) -> None:
    run.run(enqueue, {fed: 3.0})
    assert run.run(total) == 600.0


def half_come(cluster: Cluster, run: Any, *parts: Any) -> Any:
    """Plans both tensors, and begins a step of which one has come while the other is waited for:
    its thread, and what it fails with."""
    steps_until_planned(cluster, partial(one_step, run, *parts), 2)
    worker = Counted(cluster, "worker")
    begun = in_background(run, parts[-1])
    eventually(lambda: worker["received_planned"] == 1, "the other one is waited for")
    return begun


def nothing_is_kept(worker: Counted, ps: Counted) -> bool:
    """Whether all that was pushed was taken, or is dropped."""
    dropped = worker["planned_dropped"]
    return ps["served_planned"] == worker["received_planned"] + dropped


def test_an_aborted_step(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    """One tensor was pushed, the other one is waited for."""
    tf = tensorflow
    parts = blocked(tf)
    worker, ps = Counted(cluster, "worker"), Counted(cluster, "ps")
    step = partial(one_step, run, *parts)
    steps_until_planned(cluster, step, 2)
    short = tf.compat.v1.RunOptions(timeout_in_ms=200)
    with pytest.raises(tf.errors.DeadlineExceededError):
        run.run(parts[-1], options=short)
    step()
    steps_until_planned(cluster, step, 2)
    steps_until(step, partial(nothing_is_kept, worker, ps), "all was taken, or is dropped")


def test_aborted_steps_in_which_nobody_claims(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    """The worker fails before it has asked for any of what was pushed. Each time all of it is
    dropped, and what was dropped three times is left to calls."""
    tf = tensorflow
    with tf.device(WORKER):
        fed = tf.compat.v1.placeholder(tf.float32, ())
        queue = tf.queue.FIFOQueue(1, [tf.float32], [[]])
        enqueue = queue.enqueue(fed)
        gate = tf.debugging.check_numerics(queue.dequeue(), "no number")
    with tf.device(PS):
        values = [tf.random.uniform([10_000]) for _ in range(10)]
    sends, receives = zip(
        *(edge(tf, run, f"unclaimed {place}", value) for place, value in enumerate(values)),
        strict=True,
    )
    with tf.control_dependencies([gate]):
        step_of_both = [*sends, *(receive() for receive in receives)]

    def step() -> None:
        run.run(enqueue, {fed: 0})
        run.run(step_of_both)

    worker, ps = Counted(cluster, "worker"), Counted(cluster, "ps")
    for abort in range(1, 4):
        steps_until_planned(cluster, step, len(values))
        sent = Counted(cluster, "ps")
        thread, failures = in_background(run, step_of_both)
        eventually(
            lambda sent=sent: sent["served_planned"] == len(values),  # type: ignore[misc]
            "all of the step is pushed",
        )
        run.run(enqueue, {fed: np.nan})
        thread.join(30)
        assert isinstance(failures[0], tf.errors.InvalidArgumentError)
        most = abort * len(values)
        steps_until(
            step,
            lambda most=most: worker["planned_dropped"] == worker["unplanned_edges"] == most,  # type: ignore[misc]
            "what nobody claimed is dropped",
        )
        assert nothing_is_kept(worker, ps)
    worker.again()
    for _ in range(5):
        step()
    assert worker["received_planned"] == worker["planned_dropped"] == 0


def test_an_error_at_the_sender(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    """One tensor was pushed, the other one is never made."""
    tf = tensorflow
    with tf.device(PS):
        fed = tf.compat.v1.placeholder(tf.float32, ())
        value = tf.debugging.check_numerics(tf.fill([100], fed), "no number")
        other = tf.random.shuffle(tf.fill([100], 2.0))  # no constant
    with tf.device(WORKER):
        total = tf.reduce_sum(tf.identity(value) * tf.identity(other))

    def step() -> None:
        assert run.run(total, {fed: 3.0}) == 600.0

    worker, ps = Counted(cluster, "worker"), Counted(cluster, "ps")
    steps_until_planned(cluster, step, 2)
    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="no number"):
            run.run(total, {fed: np.nan})
        steps_until(step, partial(nothing_is_kept, worker, ps), "all was taken, or is dropped")
    steps_until_planned(cluster, step, 2)
    steps_until(step, partial(nothing_is_kept, worker, ps), "all was taken, or is dropped")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_sender_that_is_killed_while_a_push_is_waited_for(
    tensorflow: Any, graph: None, transport: str
) -> None:
    tf = tensorflow
    parts = blocked(tf)
    environment = {"TENSORWIRE_TF_PLAN": "on", "TENSORWIRE_TRANSPORT": transport}
    with (
        running(PAIR, **environment) as cluster,
        session_that_loses_a_server(tf, cluster.target("worker")) as run,
    ):
        thread, failures = half_come(cluster, run, *parts)
        assert not is_waited_for(cluster, "ps")  # by no call
        cluster.processes["ps", 0].kill()
        thread.join(30)
        assert not thread.is_alive()
        assert isinstance(failures[0], tf.errors.UnavailableError | tf.errors.AbortedError)


def test_a_receiver_that_is_killed_while_it_waits_for_a_push(tensorflow: Any, graph: None) -> None:
    """The sender serves the one that takes its place, in steps that are planned, too."""
    tf = tensorflow
    parts = blocked(tf)
    with running(PAIR, TENSORWIRE_TF_PLAN="on", TENSORWIRE_TRANSPORT="shm") as cluster:
        with session_that_loses_a_server(tf, cluster.target("worker")) as run:
            thread, failures = half_come(cluster, run, *parts)
            cluster.restart(("worker", 0))
            thread.join(30)
            assert isinstance(failures[0], tf.errors.UnavailableError | tf.errors.AbortedError)
        with session_that_loses_a_server(tf, cluster.target("worker")) as run:
            steps_until_planned(cluster, partial(one_step, run, *parts), 2)


def test_a_connection_that_is_cut_while_a_push_is_waited_for(tensorflow: Any, graph: None) -> None:
    tf = tensorflow
    parts = blocked(tf)
    with (
        running(PAIR, TENSORWIRE_TF_PLAN="on", TENSORWIRE_TRANSPORT="tcp") as cluster,
        session_as_written(tf, cluster.target("worker")) as run,
    ):
        thread, failures = half_come(cluster, run, *parts)
        assert cluster.processes["ps", 0].ask("cut") > 0
        thread.join(30)
        assert not thread.is_alive()
        assert isinstance(failures[0], tf.errors.UnavailableError)
        # Over a new connection.
        steps_until_planned(cluster, partial(one_step, run, *parts), 2)
