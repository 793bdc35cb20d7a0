# SPDX-License-Identifier: Apache-2.0
"""Planned transfers with a peer that does not keep to the plan: between real servers, whose
processes send what they should not (``hostile.py``)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from tests.tensorflow.conftest import (
    PAIR,
    PS,
    WORKER,
    Cluster,
    Process,
    eventually,
    session_as_written,
)
from tests.tensorflow.hostile import ANOTHER_STREAM, BORNE, OF_RECEIVER, OF_SENDER
from tests.tensorflow.planned import Counted, steps_until_planned

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def attacked() -> Iterator[Cluster]:
    """Both break plans when they are told to."""
    environment = {"TENSORWIRE_TF_PLAN": "on", "TENSORWIRE_TRANSPORT": "tcp"}
    cluster = Cluster(PAIR, environment)
    try:
        for task in PAIR:
            cluster.start([task], hostile=True)
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.close()


UNCLAIMED = ("the step's tensor again", "a tensor of no step", "a dead tensor of no step")
"""What is dropped, of all that is sent."""


def sessions(tf: Any, cluster: Cluster) -> Generator[Any, None, None]:
    """One after the other."""
    while True:
        with session_as_written(tf, cluster.target("worker")) as run:
            yield run


def test_a_peer_that_breaks_the_plan(tensorflow: Any, attacked: Cluster, graph: None) -> None:
    """The plan ends, and is counted; the link goes on to be used for calls. What a sender may say
    is borne. No value is changed."""
    tf = tensorflow
    with tf.device(PS):
        seed = tf.compat.v1.placeholder(tf.float32, ())
        value = tf.fill([100], seed)
    with tf.device(WORKER):
        back = tf.identity(value)
    fed = 0
    ps, worker = attacked.processes["ps", 0], attacked.processes["worker", 0]
    with closing(sessions(tf, attacked)) as opened:
        run = next(opened)

        def step() -> None:
            nonlocal fed
            fed += 1
            np.testing.assert_array_equal(run.run(back, {seed: fed}), [fed] * 100)

        def step_works() -> bool:
            """Not while the sender pushes to a stream, or a link, that has ended, nor where the
            receiver waited for a tensor when it refused the plan."""
            try:
                step()
            except (tf.errors.UnavailableError, tf.errors.InternalError):
                return False
            return True

        for name in (*OF_SENDER, *OF_RECEIVER):
            if name in OF_SENDER:
                steps_until_planned(attacked, step)
            received, sent = Counted(attacked, "worker"), Counted(attacked, "ps")
            attacker, victim = (ps, received) if name in OF_SENDER else (worker, sent)
            attacker.ask(f"attack {name}")

            def is_attacked(attacker: Process = attacker) -> bool:
                return step_works() and attacker.ask("attacks") == 0

            def is_counted(victim: Counted = victim, name: str = name) -> bool:
                return victim["plans_refused"] == (name not in BORNE)

            def is_dropped(received: Counted = received, name: str = name) -> bool:
                return received["planned_dropped"] == (name in UNCLAIMED)

            eventually(is_attacked, name)
            eventually(is_counted, name)
            eventually(step_works, name)
            eventually(is_dropped, name)
            before = received["received_planned"]
            for _ in range(3):
                step()
            if name not in BORNE:
                assert received["received_planned"] == before, name
            assert is_counted(), name
            assert is_dropped(), name
            assert received["links"] == 0, name
            # What was planned is forgotten with the link, and a new session waits for no retry.
            assert ps.ask("cut") > 0
            run = next(opened)
            eventually(lambda: step_works() and received["links"] == 1, name)  # noqa: B023


def test_a_link_has_one_stream(tensorflow: Any, attacked: Cluster, graph: None) -> None:
    """Another one is refused; the first one is used as before."""
    tf = tensorflow
    with tf.device(PS):
        value = tf.fill([100], 7.0)
    with tf.device(WORKER):
        back = tf.identity(value)
    ps, worker = Counted(attacked, "ps"), attacked.processes["worker", 0]
    worker.ask(f"attack {ANOTHER_STREAM}")
    with session_as_written(tf, attacked.target("worker")) as run:
        steps_until_planned(attacked, lambda: run.run(back))
        eventually(lambda: worker.ask("attacks") == 0, "it has begun another stream")
        eventually(lambda: ps["plans_refused"] == 1, "that is refused")
        steps_until_planned(attacked, lambda: run.run(back))
    assert ps["plans_refused"] == 1


def test_what_nobody_claims_is_bounded(tensorflow: Any, attacked: Cluster, graph: None) -> None:
    """256 MiB of it are kept, and one tensor more ends the plan."""
    tf = tensorflow
    with tf.device(PS):
        values = [tf.fill([1 << 18], float(n)) for n in range(64)]
        another = tf.fill([1 << 18], 64.0)
        word = tf.strings.as_string(tf.fill([], 65.0))  # of no plan
    with tf.device(WORKER):
        unplanned = tf.identity(word)
        firsts = tf.stack([tf.identity(value)[0] for value in values])
        last = tf.identity(another)[0]
    worker, ps = Counted(attacked, "worker"), attacked.processes["ps", 0]
    assert ps.ask("cut") > 0  # with what was planned
    with session_as_written(tf, attacked.target("worker")) as run:

        def step() -> None:
            assert run.run(firsts).tolist() == list(range(64))

        eventually(lambda: float(run.run(unplanned)) == 65, "another link")
        steps_until_planned(attacked, step, 64)
        assert ps.ask("fill") == 256
        for _ in range(2):
            assert worker["plans_refused"] == 0
            assert run.run(last) == 64
        eventually(lambda: worker["plans_refused"] == 1, "one tensor more than is kept")
        step()
