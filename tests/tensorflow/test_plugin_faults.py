# SPDX-License-Identifier: Apache-2.0
"""What goes wrong while tensors are in flight: killed peers, aborted steps, a full arena."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.pausing import paused
from tests.tensorflow.conftest import PAIR, PS, WORKER, Cluster, eventually, running
from tests.tensorflow.test_plugin_paths import session

pytestmark = pytest.mark.timeout(300)


@contextmanager
def session_that_loses_a_server(tf: Any, target: str) -> Iterator[Any]:
    """TensorFlow waits for a dead server when it closes a session, for as long as it may."""
    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=10_000)
    run = tf.compat.v1.Session(target, config=config)
    try:
        yield run
    finally:
        with suppress(tf.errors.OpError):
            run.close()


def started(body: Callable[[], Any]) -> tuple[threading.Thread, list[BaseException]]:
    """A thread, and what ``body`` will have raised in it."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            body()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    return thread, failures


def in_background(run: Any, fetch: Any) -> tuple[threading.Thread, list[BaseException]]:
    return started(partial(run.run, fetch))


def waits_on_ps(tf: Any) -> Any:
    """Something that the worker waits for and the ps never produces."""
    with tf.device(PS):
        queue = tf.queue.FIFOQueue(1, [tf.float32], [[1000]])
        never = queue.dequeue()
    with tf.device(WORKER):
        return tf.reduce_sum(never)


def waits_for_a_step_unknown_to_ps(tf: Any, run: Any) -> Any:
    """Something that the worker asks the ps for in a step that has no part on the ps."""
    (ps,) = (device for device in run.list_devices() if device.name.startswith("/job:ps/"))
    sent = {
        "tensor_type": tf.compat.v1.AttrValue(type=tf.float32.as_datatype_enum),
        "tensor_name": tf.compat.v1.AttrValue(s=b"never"),
        "send_device": tf.compat.v1.AttrValue(s=ps.name.encode()),
        "send_device_incarnation": tf.compat.v1.AttrValue(i=ps.incarnation),
        "recv_device": tf.compat.v1.AttrValue(s=ps.name.replace("ps", "worker").encode()),
    }
    with tf.device(WORKER):
        graph = tf.compat.v1.get_default_graph()
        return graph.create_op("_Recv", [], [tf.float32], name="never", attrs=sent)


def reads_a_variable(tf: Any, elements: int = 500_000) -> tuple[Any, Any]:
    """Its initializer, and its sum as the worker computes it."""
    with tf.device(PS):
        variable = tf.compat.v1.get_variable(
            "v", [elements], initializer=tf.compat.v1.ones_initializer(), use_resource=True
        )
    with tf.device(WORKER):
        return variable.initializer, tf.reduce_sum(variable.read_value())


def holds_a_variable(tf: Any, elements: int) -> tuple[Any, Any]:
    """Its initializer, and a step in which the worker has its value, and waits for ever with it."""
    with tf.device(PS):
        variable = tf.compat.v1.get_variable(
            "v", [elements], initializer=tf.compat.v1.ones_initializer(), use_resource=True
        )
    with tf.device(WORKER):
        queue = tf.queue.FIFOQueue(1, [tf.float32], [[]])
        return variable.initializer, tf.reduce_sum(variable.read_value() + queue.dequeue())


def has_lent(cluster: Cluster, job: str) -> bool:
    return cluster.stats(job)["arena_leased"] > 0


def no_leases(cluster: Cluster, job: str) -> bool:
    return cluster.stats(job)["arena_leased"] == 0


def is_waited_for(cluster: Cluster, job: str) -> bool:
    return cluster.stats(job)["peers_waiting"] > 0


def nobody_waits(cluster: Cluster, job: str) -> bool:
    return cluster.stats(job)["peers_waiting"] == 0


def check_it_works(tf: Any, cluster: Cluster) -> None:
    with tf.Graph().as_default():
        initializer, total = reads_a_variable(tf)
        with session(tf, cluster.target("worker")) as run:
            run.run(initializer)
            assert run.run(total) == 500_000.0


def test_a_sender_is_killed_mid_step_and_comes_back(tensorflow: Any) -> None:
    tf = tensorflow
    with running(PAIR) as cluster:
        check_it_works(tf, cluster)
        before = cluster.stats("worker")
        with tf.Graph().as_default():
            fetch = waits_on_ps(tf)
            with session_that_loses_a_server(tf, cluster.target("worker")) as run:
                thread, failures = in_background(run, fetch)
                eventually(partial(is_waited_for, cluster, "ps"), "the worker asks")
                began = time.monotonic()
                cluster.processes["ps", 0].kill()
                thread.join(30)
                took = time.monotonic() - began
        assert took < 8
        assert isinstance(failures[0], (tf.errors.UnavailableError, tf.errors.AbortedError))
        assert "/job:ps/replica:0/task:0" in str(failures[0])
        cluster.restart(("ps", 0))
        check_it_works(tf, cluster)
        after = cluster.stats("worker")
        assert after["links"] == before["links"] + 1
        assert after["received_in_place"] > before["received_in_place"]
        assert after["received_grpc"] == 0


def test_a_required_transport_is_no_wish_when_the_sender_does_not_answer(tensorflow: Any) -> None:
    tf = tensorflow
    with running(PAIR, TENSORWIRE_TRANSPORT="tcp") as cluster, tf.Graph().as_default():
        ps = cluster.processes["ps", 0]
        initializer, total = reads_a_variable(tf)
        # A step that fails while TensorFlow begins it at the server is not cancelled there: then
        # the session's time limit ends it.
        failures = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError)
        with session_that_loses_a_server(tf, cluster.target("worker")) as run:
            run.run(initializer)
            assert run.run(total) == 500_000.0
            assert ps.ask("cut") > 0
            with paused(ps.pid):
                said = ""
                while "could not ask for a link" not in said:
                    with pytest.raises(failures) as caught:
                        run.run(total)
                    said = str(caught.value)
            assert "from remote target /job:ps/replica:0/task:0" in said
            assert "TENSORWIRE_TRANSPORT=tcp" in said
        check_it_works(tf, cluster)
        assert cluster.stats("worker")["received_grpc"] == 0


def test_what_is_known_of_peers_ends_with_their_sessions(tensorflow: Any) -> None:
    with running(PAIR) as cluster:
        for _ in range(3):
            check_it_works(tensorflow, cluster)
        some = cluster.stats("worker")["peers"]
        assert some >= 1
        for turn in range(12):
            if turn % 6 == 5:
                cluster.restart(("ps", 0))
            check_it_works(tensorflow, cluster)
        assert cluster.stats("worker")["peers"] <= some


def test_a_receiver_is_killed_while_it_reads(tensorflow: Any) -> None:
    tf = tensorflow
    with running(PAIR) as cluster:
        with tf.Graph().as_default():
            initializer, held = holds_a_variable(tf, 10_000_000)
            with session_that_loses_a_server(tf, cluster.target("worker")) as run:
                run.run(initializer)
                thread, _ = in_background(run, held)
                eventually(partial(has_lent, cluster, "ps"), "the worker reads")
                # Stopped, it keeps its leases; killed, it gives them back.
                os.kill(cluster.processes["worker", 0].pid, signal.SIGSTOP)
                assert has_lent(cluster, "ps")
                cluster.processes["worker", 0].kill()
                thread.join(60)
                assert not thread.is_alive()
        cluster.start([("worker", 0)])
        cluster.processes["worker", 0].wait_ready()
        eventually(partial(no_leases, cluster, "ps"), "leases come home")
        check_it_works(tf, cluster)


def test_a_step_that_times_out_is_cancelled_at_both_ends(tensorflow: Any) -> None:
    tf = tensorflow
    with running(PAIR) as cluster:
        check_it_works(tf, cluster)
        links = cluster.stats("worker")["links"]
        with tf.Graph().as_default():
            fetch = waits_on_ps(tf)
            seen = threading.Event()
            with session(tf, cluster.target("worker")) as run:

                def time_out() -> None:
                    while not seen.is_set():
                        with pytest.raises(tf.errors.DeadlineExceededError):
                            run.run(fetch, options=tf.compat.v1.RunOptions(timeout_in_ms=500))

                thread, failures = started(time_out)
                try:
                    eventually(partial(is_waited_for, cluster, "ps"), "the worker asks")
                finally:
                    seen.set()
                    thread.join(60)
                assert failures == []
                eventually(partial(nobody_waits, cluster, "ps"), "the ps gives up, too")
        check_it_works(tf, cluster)
        assert cluster.stats("worker")["links"] == links


@pytest.mark.parametrize("end", ["cancelled", "killed"])
def test_who_waits_in_vain_is_not_waited_for(tensorflow: Any, end: str) -> None:
    tf = tensorflow
    with running(PAIR) as cluster:
        check_it_works(tf, cluster)
        with (
            tf.Graph().as_default(),
            session_that_loses_a_server(tf, cluster.target("ps")) as run,
        ):
            never = waits_for_a_step_unknown_to_ps(tf, run)
            thread, failures = in_background(run, never)
            eventually(partial(is_waited_for, cluster, "ps"), "the worker asks")
            if end == "killed":
                cluster.processes["worker", 0].kill()
            else:
                run.close()
            eventually(partial(nobody_waits, cluster, "ps"), "the ps gives up, too")
            thread.join(30)
            assert isinstance(failures[0], tf.errors.OpError)


def test_an_error_of_the_sender_arrives_as_it_is(tensorflow: Any) -> None:
    tf = tensorflow
    with running(PAIR) as cluster, tf.Graph().as_default():
        with tf.device(PS):
            wanted = tf.compat.v1.placeholder(tf.int32, [])
            row = tf.gather(tf.ones([3, 20000]), wanted)
        with tf.device(WORKER):
            total = tf.reduce_sum(row)
        with session(tf, cluster.target("worker")) as run:
            assert run.run(total, {wanted: 2}) == 20000.0
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, 3\)"):
                run.run(total, {wanted: 3})
            assert run.run(total, {wanted: 0}) == 20000.0


def test_a_full_arena_fails_nothing(tensorflow: Any) -> None:
    tf = tensorflow
    capacity = 64 << 20  # less than all parts
    with (
        running(PAIR, TENSORWIRE_BUFFER_BYTES=str(capacity)) as cluster,
        tf.Graph().as_default(),
    ):
        with tf.device(PS):
            parts = [
                tf.random.stateless_uniform([2_500_000], [i, 1], 0, 9, tf.int32) for i in range(8)
            ]
            with tf.control_dependencies(parts):  # all of them are there at once
                expected = [tf.reduce_sum(part) for part in parts]
        with tf.device(WORKER):
            sums = [tf.reduce_sum(tf.identity(part)) for part in parts]
        with session(tf, cluster.target("worker")) as run:
            for _ in range(5):
                got, wanted = run.run([sums, expected])
                assert got == wanted
        stats = cluster.stats("ps")
        assert stats["allocated_elsewhere"] > 0
        assert stats["arena_high_water"] <= capacity


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_step_reads_more_than_the_arena_may_hold(tensorflow: Any, transport: str) -> None:
    """All of it waits for the worker at a time, because a step asks for all of its tensors at
    once."""
    tf = tensorflow
    capacity = 16 << 20
    environment = {
        "TENSORWIRE_BUFFER_BYTES": str(capacity),
        "TENSORWIRE_TRANSPORT": transport,
    }
    with running(PAIR, **environment) as cluster, tf.Graph().as_default():
        with tf.device(PS):
            variables = [
                tf.compat.v1.get_variable(
                    f"v{number}",
                    [capacity // 4 // 4],
                    initializer=tf.compat.v1.ones_initializer(),
                    use_resource=True,
                )
                for number in range(12)
            ]
        with tf.device(WORKER):
            total = tf.add_n([tf.reduce_sum(each.read_value()) for each in variables])
        with session(tf, cluster.target("worker")) as run:
            run.run(tf.compat.v1.global_variables_initializer())
            for _ in range(3):
                assert run.run(total) == 12 * capacity // 4 // 4


UNKNOWN_TASK = """
import os
import sys
import tensorflow as tf
import tensorwire.tensorflow as tt

tf.constant(1.0)  # TensorFlow has made its devices
tt.enable()
try:
    tf.distribute.Server(
        {"ps": ["127.0.0.1:0"]},
        job_name=sys.argv[1],
        task_index=int(sys.argv[2]),
        protocol=tt.PROTOCOL,
    )
except tf.errors.OpError as error:
    print(error.message, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("job", "task", "why"),
    [
        ("ps", "-1", 'Task -1 was not defined in job "ps"'),
        ("ps", "7", 'Task 7 was not defined in job "ps"'),
        ("worker", "0", 'Job "worker" was not defined in cluster'),
    ],
)
def test_a_task_that_is_not_in_the_cluster(tensorflow: Any, job: str, task: str, why: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNKNOWN_TASK, job, task],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.returncode) == (f"{why}\n", 0), done.stderr


def test_a_thousand_steps_leave_nothing_behind(tensorflow: Any) -> None:
    tf = tensorflow
    with running(PAIR) as cluster, tf.Graph().as_default():
        with tf.device(PS):
            variable = tf.compat.v1.get_variable(
                "v", [100_000], initializer=tf.compat.v1.zeros_initializer(), use_resource=True
            )
        with tf.device(WORKER):
            gradient = tf.identity(variable.read_value()) * 0.0 + 1.0
        with tf.device(PS):
            step = variable.assign_add(gradient).op
        with session(tf, cluster.target("worker")) as run:
            run.run(variable.initializer)
            call = run.make_callable(step)
            for _ in range(100):
                call()
            before = cluster.stats("ps"), cluster.stats("worker")
            for _ in range(1000):
                call()
            assert (run.run(variable) == 1100.0).all()
            for job, then in zip(("ps", "worker"), before, strict=True):
                eventually(partial(no_leases, cluster, job), "leases come home")
                now = cluster.stats(job)
                assert now["arena_used"] <= then["arena_used"] + 4 * 400_000
                assert now["arena_high_water"] <= then["arena_high_water"] + 4 * 400_000
                assert now["links"] == then["links"]
                assert now["received_in_place"] >= then["received_in_place"] + 1000


def test_nobody_sees_a_half_updated_variable(tensorflow: Any) -> None:
    tf = tensorflow
    with running(PAIR) as cluster, tf.Graph().as_default():
        with tf.device(PS):
            variable = tf.compat.v1.get_variable(
                "v", [1_000_000], initializer=tf.compat.v1.zeros_initializer(), use_resource=True
            )
            update = variable.assign_add(tf.ones([1_000_000])).op
        with tf.device(WORKER):
            value = tf.identity(variable.read_value())
            spread = tf.stack([tf.reduce_min(value), tf.reduce_max(value)])
        with (
            session(tf, cluster.target("worker")) as reader,
            session(tf, cluster.target("ps")) as writer,
        ):
            reader.run(variable.initializer)
            stop = threading.Event()

            def write() -> None:
                while not stop.is_set():
                    writer.run(update)

            thread = threading.Thread(target=write)
            thread.start()
            try:
                seen = np.array([reader.run(spread) for _ in range(150)])
            finally:
                stop.set()
                thread.join()
        assert (seen[:, 0] == seen[:, 1]).all()
        assert len(np.unique(seen)) > 10
