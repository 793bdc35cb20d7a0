# SPDX-License-Identifier: Apache-2.0
"""Planned transfers: tensors of each step that are sent ahead of a call, between real servers."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.tensorflow.conftest import (
    PAIR,
    PLUGIN,
    PS,
    STOCK,
    WORKER,
    Cluster,
    Task,
    eventually,
    running,
    session_as_written,
)
from tests.tensorflow.planned import MOST_STEPS, Counted, edge, steps_until, steps_until_planned

pytestmark = pytest.mark.timeout(300)


KINDS = ("float32", "float64", "bfloat16", "int8", "int64", "bool", "complex64")
SHAPES = ((), (0, 3), (1,), (7, 5), (1000,), (64, 1024))


def test_values_are_those_of_calls(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    """Of all kinds, in steps that are planned and in those before. Strings, lists of tensors and
    large tensors are left to calls."""
    tf = tensorflow
    with tf.device(WORKER):
        seed = tf.compat.v1.placeholder(tf.float32, ())
    with tf.device(PS):
        there = [tf.cast(tf.fill(shape, seed) + 0.25, kind) for kind in KINDS for shape in SHAPES]
        there.append(tf.strings.as_string(tf.fill([3], seed)))
        there.append(tf.fill([(1 << 18) + 1], seed))
        several = tf.raw_ops.TensorListFromTensor(tensor=tf.fill([4, 20], seed), element_shape=[20])
    with tf.device(WORKER):
        back = [tf.identity(each) for each in there]
        stacked = tf.raw_ops.TensorListStack(
            input_handle=several, element_shape=[20], element_dtype=tf.float32
        )
    fed = 0

    def step() -> None:
        nonlocal fed
        fed += 1
        *got, of_list = run.run([*back, stacked], {seed: fed})
        np.testing.assert_array_equal(of_list, np.full([4, 20], fed, np.float32))
        for value, tensor in zip(got, there, strict=True):
            expected = np.full(tensor.shape, fed, np.float32)
            if tensor.dtype == tf.string:
                assert [float(each) for each in value] == [fed] * 3
            else:
                if tensor.shape != (1 << 18) + 1:
                    expected += np.float32(0.25)
                assert value.dtype == tensor.dtype.as_numpy_dtype
                np.testing.assert_array_equal(value, expected.astype(value.dtype))

    planned = len(KINDS) * len(SHAPES)
    worker, ps = Counted(cluster, "worker"), Counted(cluster, "ps")
    step()
    step()
    assert worker["received_planned"] == 0
    steps_until_planned(cluster, step, planned)
    assert worker["planned_edges"] == planned
    steps = 0
    while ps["planned_edges"] == 0 and steps < MOST_STEPS:
        steps += 1
        step()
    assert ps["planned_edges"] == 1  # the seed, which goes the other way
    assert worker["unplanned_edges"] == worker["planned_dropped"] == 0
    worker.again()
    ps.again()
    for _ in range(3):
        step()
    assert worker["received_planned"] == ps["served_planned"] == 3 * planned
    assert ps["served_serialized"] == 2 * 3  # the strings, and the list


def test_planned_from_the_third_step(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    tf = tensorflow
    with tf.device(PS):
        values = [tf.random.uniform([100]) for _ in range(10)]
    with tf.device(WORKER):
        total = tf.add_n([tf.identity(value) for value in values])
    worker = Counted(cluster, "worker")
    run.run(total.op)
    assert worker["planned_edges"] == 0
    run.run(total.op)
    assert worker["received_planned"] == 0
    eventually(lambda: worker["planned_edges"] == 10, "what is wanted is agreed on")
    run.run(total.op)
    assert worker["received_planned"] == 10


def test_a_shape_that_changes_unplans(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    tf = tensorflow
    with tf.device(WORKER):
        size = tf.compat.v1.placeholder(tf.int32, ())
    with tf.device(PS):
        value = tf.range(size)
    with tf.device(WORKER):
        total = tf.reduce_sum(tf.identity(value))
    worker = Counted(cluster, "worker")

    def step(of: int) -> None:
        assert run.run(total, {size: of}) == of * (of - 1) // 2

    for of in range(8):
        step(of)
    assert worker["received_planned"] == worker["planned_edges"] == 0
    steps_until_planned(cluster, partial(step, 50))
    step(51)
    step(50)
    assert worker["unplanned_edges"] == 1
    steps_until_planned(cluster, partial(step, 20_000))
    step(3)
    steps_until_planned(cluster, partial(step, 50))
    # It has had its chances.
    step(3)
    worker.again()
    for _ in range(5):
        step(50)
    assert worker["received_planned"] == 0


def test_a_tensor_that_is_dead_in_some_steps(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    tf = tensorflow
    with tf.device(WORKER):
        taken = tf.compat.v1.placeholder(tf.bool, ())
    with tf.device(PS):
        no, yes = tf.raw_ops.Switch(data=tf.fill([10], 3.0), pred=taken)
    with tf.device(WORKER):
        (merged, _) = tf.raw_ops.Merge(inputs=[tf.identity(yes) * 2, tf.identity(no)])

    def step(which: bool) -> None:
        np.testing.assert_array_equal(run.run(merged, {taken: which}), [6 if which else 3] * 10)

    worker = Counted(cluster, "worker")
    for number in range(MOST_STEPS):
        step(number % 2 == 0)
    assert worker["received_planned"] > MOST_STEPS


def test_two_steps_in_flight(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    """Each gets its own tensors, though they are pushed on one stream."""
    tf = tensorflow
    with tf.device(WORKER):
        seed = tf.compat.v1.placeholder(tf.float32, ())
    with tf.device(PS):
        there = [tf.fill([500 * place], seed) for place in range(1, 21)]
    with tf.device(WORKER):
        back = [tf.identity(each) for each in there]
    wrong: list[Any] = []

    def steps(first: int) -> None:
        for number in range(first, first + 30):
            got = run.run(back, {seed: number})
            wrong.extend(number for each in got if not np.all(each == number))

    worker = Counted(cluster, "worker")
    threads = [threading.Thread(target=steps, args=(1000 * each,)) for each in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert worker["received_planned"] > 0
    assert worker["planned_dropped"] == 0


@pytest.mark.parametrize("elements", [100, 150], ids=["the same shapes", "other shapes"])
def test_two_sessions_of_the_same_names(tensorflow: Any, cluster: Cluster, elements: int) -> None:
    """What has a name in one of them may be anything in the other one."""
    tf = tensorflow
    wrong: list[Any] = []

    def steps(of: int, number: int, planned: bool = False) -> None:
        with tf.Graph().as_default(), session_as_written(tf, cluster.target("worker")) as run:
            with tf.device(WORKER):
                seed = tf.compat.v1.placeholder(tf.float32, ())
            with tf.device(PS):
                there = [tf.fill([of * place], seed) for place in range(1, 11)]
            with tf.device(WORKER):
                back = [tf.identity(each) for each in there]
            fed = of

            def step() -> None:
                nonlocal fed
                fed += 1
                for place, got in enumerate(run.run(back, {seed: fed}), 1):
                    if got.shape != (of * place,) or not np.all(got == fed):
                        wrong.append(got)

            if planned:
                steps_until_planned(cluster, step, 10)
                other = threading.Thread(target=steps, args=(elements, number))
                other.start()
            for _ in range(number):
                step()
            if planned:
                other.join()

    steps(100, 30, planned=True)
    assert not wrong


def test_many_steps_in_flight_when_something_new_is_planned(
    tensorflow: Any, cluster: Cluster, run: Any
) -> None:
    """More steps than may be planned at a time. Each of the new tensors excludes those that are
    there when it is agreed on, though something of them was pushed."""
    tf = tensorflow

    def there_and_back(value: Any, size: int) -> Any:
        with tf.device(PS):
            there = tf.fill([size], value)
        with tf.device(WORKER):
            return tf.identity(there)

    with tf.device(WORKER):
        seed = tf.compat.v1.placeholder(tf.float32, ())
    first = there_and_back(seed, 100)
    with tf.device(WORKER):
        slow = tf.fill([400, 400], first[0] * 0.0 + 0.001)
        for _ in range(6):
            slow = tf.matmul(slow, slow)
        after = seed + tf.reduce_sum(slow) * 0.0
    usual = [first, there_and_back(after, 200)]
    new = [there_and_back(seed, 10 + place) for place in range(30)]
    refused = Counted(cluster, "worker")
    for _ in range(4):
        run.run(usual, {seed: 1.0})
    over = threading.Event()
    wrong: list[Any] = []

    def steps(number: float) -> None:
        while not over.is_set():
            number += 1
            try:
                got = run.run(usual, {seed: number})
            except tf.errors.OpError as error:
                wrong.append(error)
                return
            wrong.extend(number for each in got if not np.all(each == number))

    threads = [threading.Thread(target=steps, args=(1000 * each,)) for each in range(8)]
    for thread in threads:
        thread.start()
    try:
        for each in new:
            for _ in range(3):
                assert np.all(run.run(each, {seed: 7.0}) == 7.0)
            if wrong:
                break
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert refused["plans_refused"] == 0
    assert refused["received_planned"] > 0


def test_sessions_whose_first_steps_run_together_share_a_link(tensorflow: Any, graph: None) -> None:
    tf = tensorflow
    begin = threading.Barrier(4)
    failures: list[Any] = []

    def steps(number: int, target: str) -> None:
        try:
            with tf.Graph().as_default():
                with tf.device(WORKER):
                    seed = tf.compat.v1.placeholder(tf.float32, ())
                with tf.device(PS):
                    there = [tf.fill([100 * place], seed) for place in range(1, 11)]
                with tf.device(WORKER):
                    back = [tf.identity(each) for each in there]
                with session_as_written(tf, target, isolated=True) as run:
                    run.list_devices()
                    begin.wait(60)
                    for fed in range(1000 * number, 1000 * number + 20):
                        for got in run.run(back, {seed: fed}):
                            assert np.all(got == fed)
        except Exception as error:
            failures.append(error)

    with running(PAIR, TENSORWIRE_TF_PLAN="on", TENSORWIRE_TRANSPORT="tcp") as cluster:
        threads = [
            threading.Thread(target=steps, args=(number, cluster.target("worker")))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        for job in ("worker", "ps"):
            assert cluster.stats(job)["links"] == 1


def test_what_nobody_claims_is_dropped_and_unplanned(
    tensorflow: Any, cluster: Cluster, run: Any
) -> None:
    tf = tensorflow
    with tf.device(PS):
        value = tf.random.uniform([10])
    send, receive = edge(tf, run, "unclaimed", value)
    received = receive()
    with tf.device(WORKER):
        nothing = tf.no_op()
    steps_until_planned(cluster, lambda: run.run([send, received]))
    worker = Counted(cluster, "worker")
    run.run([send, nothing])
    steps_until(
        lambda: run.run([send, received]),
        lambda: worker["planned_dropped"] == worker["unplanned_edges"] == 1,
        "what nobody claimed is dropped",
    )
    steps_until_planned(cluster, lambda: run.run([send, received]))


def test_a_key_that_comes_twice_in_a_step(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    """As in loops whose iterations have no names: each receiver gets one of the tensors."""
    tf = tensorflow
    with tf.device(PS):
        value = tf.constant(1.0)
        other = tf.constant(2.0)
    send, receive = edge(tf, run, "twice", value)
    more, _ = edge(tf, run, "twice", other)
    first, second = receive(), receive()
    steps_until_planned(cluster, lambda: run.run([send, first]))
    worker = Counted(cluster, "worker")
    for _ in range(5):
        _, _, *got = run.run([send, more, first, second])
        assert sorted(got) == [1.0, 2.0]
    assert worker["unplanned_edges"] == 1
    worker.again()
    for _ in range(5):
        run.run([send, first])
    assert worker["received_planned"] == 0


def test_loops_are_left_to_calls(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    tf = tensorflow

    def body(number: Any, total: Any) -> tuple[Any, Any]:
        with tf.device(PS):
            there = total + 1.0
        with tf.device(WORKER):
            return number + 1, tf.identity(there)

    with tf.device(WORKER):
        _, total = tf.compat.v1.while_loop(
            lambda number, _: number < 7, body, [tf.constant(0), tf.zeros([100])]
        )
    worker, ps = Counted(cluster, "worker"), Counted(cluster, "ps")
    for _ in range(5):
        np.testing.assert_array_equal(run.run(total), [7.0] * 100)
    eventually(lambda: worker["received_planned"] == 0, "no tensor of an iteration is planned")
    # What is the same in all iterations comes once.
    assert ps["planned_edges"] <= 2
    assert worker["planned_edges"] == 0


@pytest.mark.parametrize(
    ("tasks", "plan"),
    [
        (PAIR, {"ps": "off", "worker": "on"}),
        (PAIR, {"ps": "on", "worker": "off"}),
        ({("ps", 0): STOCK, ("worker", 0): PLUGIN}, {"ps": "on", "worker": "on"}),
    ],
    ids=["receiver only", "sender only", "stock"],
)
def test_one_end_alone_plans_nothing(
    tensorflow: Any, graph: None, tasks: dict[Task, str], plan: dict[str, str]
) -> None:
    tf = tensorflow
    with tf.device(PS):
        value = tf.fill([100], 2.0)
    with tf.device(WORKER):
        total = tf.reduce_sum(tf.identity(value))
    cluster = Cluster(tasks, {})
    try:
        for task in tasks:
            cluster.start([task], TENSORWIRE_TF_PLAN=plan[task[0]])
        cluster.wait_ready()
        with session_as_written(tf, cluster.target("worker")) as run:
            for _ in range(5):
                assert run.run(total) == 200.0
        stats = cluster.stats("worker")
        assert stats["received_planned"] == stats["planned_edges"] == 0
    finally:
        cluster.close()
