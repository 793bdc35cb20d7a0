# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow writes to whoever else refers to it never changes under its reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from threading import Event
from typing import Any

import numpy as np
import pytest
from tests.tensorflow.conftest import PAIR, PS, STOCK, WORKER, Cluster, running, session_as_written
from tests.tensorflow.writers import ROWS, SHAPE, start, writers

pytestmark = pytest.mark.timeout(300)

ROUNDS = 2
NBYTES = 4 * SHAPE[0] * SHAPE[1]


@pytest.fixture(scope="module")
def cluster(tensorflow: Any) -> Iterator[Cluster]:
    """Each variable crosses by itself."""
    with running(PAIR, TENSORWIRE_TF_PLAN="off") as started:
        yield started


@pytest.fixture(scope="module")
def stock(tensorflow: Any) -> Iterator[Cluster]:
    with running(dict.fromkeys(PAIR, STOCK)) as started:
        yield started


def bits(tf: Any, x: Any) -> Any:
    return tf.bitcast(x, tf.int32)


def watched(tf: Any, values: list[Any], write: Callable[[], Any]) -> list[Any]:
    """For each value, which lies on the ps: whether the worker, which has received it, sees it
    change when the ps writes. All in one step, whose edges give the order: look, write, look."""
    with tf.device(WORKER):
        first = [tf.raw_ops.DeepCopy(x=bits(tf, value)) for value in values]
        seen = tf.stack([look[0, 0] for look in first])
    with tf.device(PS), tf.control_dependencies([tf.identity(seen)]):
        wrote = write()
    with tf.device(PS), tf.control_dependencies([wrote]):
        done = tf.identity(seen)
    with tf.device(WORKER), tf.control_dependencies([tf.identity(done)]):
        second = [tf.raw_ops.DeepCopy(x=bits(tf, value)) for value in values]
        return [tf.reduce_any(tf.not_equal(*looks)) for looks in zip(first, second, strict=True)]


def read(tf: Any, variable: Any, resource: bool) -> Any:
    return variable.read_value() if resource else tf.identity(variable)


def after_every_writer(tf: Any, cluster: Cluster, resource: bool) -> dict[str, list[Any]]:
    """The values of the variables after each round, by operation; no reader saw one change."""
    with tf.Graph().as_default():
        flags, variables, initialize = {}, {}, []
        for writer in writers(tf, resource=resource):
            with tf.device(PS):
                variables[writer.name], write = writer.make()
                values = [read(tf, each, resource) for each in variables[writer.name]]
            flags[writer.name] = watched(tf, values, write)
            initialize += [each.initializer for each in variables[writer.name]]
        found: dict[str, list[Any]] = {name: [] for name in variables}
        with session_as_written(tf, cluster.target("worker")) as run:
            run.run(initialize)
            before = run.run(variables)
            for _ in range(ROUNDS):
                changed = run.run(flags)
                assert [name for name, seen in changed.items() if any(seen)] == []
                after = run.run(variables)
                for name in variables:
                    pairs = zip(after[name], before[name], strict=True)
                    assert any((a != b).any() for a, b in pairs), f"{name} has written nothing"
                    found[name].append(after[name])
        return found


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
def test_every_operation_that_writes_to_a_variable(
    tensorflow: Any, cluster: Cluster, stock: Cluster, resource: bool
) -> None:
    before = cluster.stats("ps")
    ours = after_every_writer(tensorflow, cluster, resource)
    stats = {name: count - before[name] for name, count in cluster.stats("ps").items()}
    theirs = after_every_writer(tensorflow, stock, resource)
    assert len(ours) > 40
    for name, rounds in theirs.items():
        np.testing.assert_array_equal(ours[name], rounds, err_msg=name)
    # What may be lent is, and what may not be is counted.
    count = ROUNDS * sum(len(rounds[0]) for rounds in ours.values())
    if resource:
        assert stats["served_lent"] >= count
        assert stats["served_copied"] == stats["served_mutable"] == 0
    else:
        assert stats["served_lent"] == 0
        assert stats["served_mutable"] == stats["served_copied"] >= count
        assert stats["served_mutable_bytes"] == stats["served_mutable"] * NBYTES


def through_a_queue(tf: Any, value: Any) -> Any:
    queue = tf.queue.FIFOQueue(1, tf.float32, [SHAPE])
    with tf.control_dependencies([queue.enqueue(value)]):
        return queue.dequeue()


def through_a_function(tf: Any, value: Any) -> Any:
    return tf.function(lambda x: tf.identity(x))(value)


def through_a_branch(tf: Any, value: Any) -> Any:
    taken = tf.compat.v1.placeholder_with_default(True, [])
    no, yes = tf.raw_ops.Switch(data=value, pred=taken)
    return tf.raw_ops.Merge(inputs=[no, yes])[0]


def through_a_resource_variable(tf: Any, value: Any) -> Any:
    holder = tf.compat.v1.get_variable("holder", SHAPE, use_resource=True, trainable=False)
    with tf.control_dependencies([holder.assign(value).op]):
        return holder.read_value()


# Each gives a tensor that shares the memory of the value.
WAYS = {
    "slice": lambda _tf, x: x[1:9],
    "reshape": lambda tf, x: tf.reshape(x, [1, -1]),
    "branch": through_a_branch,
    "function": through_a_function,
    "queue": through_a_queue,
    "resource variable": through_a_resource_variable,
}


def test_every_way_to_a_reference_variables_memory(tensorflow: Any, cluster: Cluster) -> None:
    tf = tensorflow
    with tf.Graph().as_default():
        with tf.device(PS):
            variable = tf.compat.v1.Variable(start(tf, 0), trainable=False, use_resource=False)
            parts = list(
                tf.compat.v1.get_variable(
                    "parts",
                    (2 * SHAPE[0], SHAPE[1]),
                    partitioner=tf.compat.v1.fixed_size_partitioner(2),
                    use_resource=False,
                )
            )
            values = [way(tf, tf.identity(variable)) for way in WAYS.values()]
            values += [tf.identity(part) for part in parts]

        def write() -> Any:
            all_ = [variable, *parts]
            return tf.group([tf.compat.v1.assign_add(each, each * 0.0 + 1.0) for each in all_])

        flags = watched(tf, values, write)
        with tf.device(PS):
            nothing = tf.identity(variable)[:0]
        with tf.device(WORKER):
            nothing = tf.identity(nothing)
        with session_as_written(tf, cluster.target("worker")) as run:
            run.run(tf.compat.v1.global_variables_initializer())
            names = [*WAYS, *(["part"] * len(parts))]
            changed = zip(names, run.run(flags), strict=True)
            assert [name for name, seen in changed if seen] == []
            assert run.run(nothing).shape == (0, SHAPE[1])


def test_a_variable_does_not_take_over_memory_that_is_lent_later(
    tensorflow: Any, cluster: Cluster
) -> None:
    """Where a graph has no other device, TensorFlow lets Assign keep the buffer of its value."""
    tf = tensorflow
    with tf.Graph().as_default():
        with tf.device(PS):
            variable = tf.compat.v1.Variable(start(tf, 0), trainable=False, use_resource=False)
        fill = variable.initializer
        flags = watched(
            tf,
            [tf.identity(variable)],
            lambda: tf.compat.v1.assign_add(variable, variable + 1.0).op,
        )
        config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=60_000)
        rewrites = config.graph_options.rewrite_options
        rewrites.memory_optimization = rewrites.HEURISTICS
        rewrites.min_graph_nodes = -1
        with tf.compat.v1.Session(cluster.target("ps"), config=config) as run:
            run.run(fill)
        with session_as_written(tf, cluster.target("ps")) as run:
            assert run.run(flags) == [False]


def test_a_temporary_variable(tensorflow: Any, cluster: Cluster, stock: Cluster) -> None:
    tf = tensorflow
    results = []
    for each in (cluster, stock):
        with tf.Graph().as_default():
            with tf.device(PS):
                temporary = tf.raw_ops.TemporaryVariable(
                    shape=SHAPE, dtype=tf.float32, var_name="t"
                )
                filled = tf.raw_ops.Assign(ref=temporary, value=start(tf, 0))
                value = tf.identity(filled)
            ended: list[Any] = []

            def write(filled: Any = filled, ended: list[Any] = ended) -> Any:
                added = tf.raw_ops.AssignAdd(ref=filled, value=tf.ones(SHAPE))
                ended.append(tf.raw_ops.DestroyTemporaryVariable(ref=added, var_name="t"))
                return ended[0].op

            flags = watched(tf, [value], write)
            with session_as_written(tf, each.target("worker")) as run:
                seen, last = run.run([flags, ended[0]])
                assert seen == [False]
                results.append(last)
    np.testing.assert_array_equal(*results)


def in_place(tf: Any, name: str, x: Any) -> Any:
    rows = tf.fill([len(ROWS), SHAPE[1]], 3.0)
    return getattr(tf.raw_ops, name)(x=x, i=ROWS, v=rows)


IN_PLACE = ("InplaceUpdate", "InplaceAdd", "InplaceAdd", "InplaceSub")


def after_in_place(tf: Any, cluster: Cluster) -> list[Any]:
    """Written to through what was read of a resource variable, and through a reference variable."""
    with tf.Graph().as_default():
        with tf.device(PS):
            variables = [
                tf.compat.v1.Variable(start(tf, at), trainable=False, use_resource=resource)
                for at, resource in enumerate((True, False))
            ]
            values = [read(tf, v, r) for v, r in zip(variables, (True, False), strict=True)]

        def write() -> Any:
            return tf.group(
                [reduce(lambda y, name: in_place(tf, name, y), IN_PLACE, x) for x in values]
            )

        flags = watched(tf, values, write)
        with session_as_written(tf, cluster.target("worker")) as run:
            run.run([each.initializer for each in variables])
            found = []
            for _ in range(ROUNDS):
                assert run.run(flags) == [False, False]
                found.append(run.run(variables))
            return found


def test_operations_that_write_to_their_input(
    tensorflow: Any, cluster: Cluster, stock: Cluster
) -> None:
    tf = tensorflow
    before = cluster.stats("ps")
    ours = after_in_place(tf, cluster)
    after = cluster.stats("ps")
    assert after["served_mutable"] - before["served_mutable"] >= 2 * ROUNDS
    assert after["served_lent"] == before["served_lent"]
    np.testing.assert_array_equal(ours, after_in_place(tf, stock))


def test_what_was_lent_before_such_an_operation_came(tensorflow: Any, cluster: Cluster) -> None:
    """Those of earlier sessions are gone, so that it was lent."""
    tf = tensorflow
    before = cluster.stats("ps")
    with tf.Graph().as_default():
        with tf.device(PS):
            variable = tf.compat.v1.Variable(start(tf, 0), trainable=False, use_resource=True)
            value = variable.read_value()
        with tf.device(WORKER):
            looked, go = (tf.queue.FIFOQueue(1, tf.int32, [[]]) for _ in range(2))
            first = tf.raw_ops.DeepCopy(x=bits(tf, value))
            with tf.control_dependencies([first]):
                told = looked.enqueue(0)
            with tf.control_dependencies([told]):
                called = go.dequeue()
            with tf.control_dependencies([called]):
                second = tf.raw_ops.DeepCopy(x=bits(tf, value))
            changed = tf.reduce_any(tf.not_equal(first, second))
        with tf.device(PS):
            written = in_place(tf, "InplaceUpdate", value)
        with (
            session_as_written(tf, cluster.target("worker")) as run,
            ThreadPoolExecutor(1) as pool,
        ):
            run.run(variable.initializer)
            reader = pool.submit(run.run, changed)
            run.run(looked.dequeue())
            output = run.run(written)
            run.run(go.enqueue(0))
            assert not reader.result(60)
            assert (output[list(ROWS)] == 3.0).all()
    after = cluster.stats("ps")
    assert after["served_lent"] == before["served_lent"] + 1


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
def test_asynchronous_writers(tensorflow: Any, cluster: Cluster, resource: bool) -> None:
    """Nothing orders the writers, which run all the time, and the readers."""
    tf = tensorflow
    with tf.Graph().as_default():
        all_: list[Any] = []
        writes: list[Any] = []
        changed: list[Any] = []
        for writer in writers(tf, resource=resource):
            with tf.device(PS):
                variables, write = writer.make()
                values = [read(tf, each, resource) for each in variables]
                writes.append(write())
            with tf.device(WORKER):
                first = [tf.raw_ops.DeepCopy(x=bits(tf, value)) for value in values]
                long = tf.reduce_sum(tf.matmul(tf.ones([300, 300]), tf.fill([300, 300], 2.0)))
                with tf.control_dependencies([*first, long]):
                    second = [tf.raw_ops.DeepCopy(x=bits(tf, value)) for value in values]
                changed += map(tf.not_equal, first, second)
            all_ += variables
        with tf.device(WORKER):
            flag = tf.reduce_any(tf.stack([tf.reduce_any(each) for each in changed]))
        with session_as_written(tf, cluster.target("worker")) as run:
            run.run([each.initializer for each in all_])
            ended = Event()

            def go_on(step: Callable[[], Any]) -> int:
                count = 0
                while not ended.is_set():
                    step()
                    count += 1
                return count

            with ThreadPoolExecutor(1) as pool:
                writing = pool.submit(go_on, partial(run.run, writes))
                try:
                    seen = [run.run(flag) for _ in range(10)]
                finally:
                    ended.set()
                assert writing.result(60) > 0
            assert not any(seen)


OPTIMIZERS = (
    "GradientDescent",
    "Momentum",
    "Adam",
    "Adagrad",
    "RMSProp",
    "Ftrl",
    "Adadelta",
    "ProximalAdagrad",
    "ProximalGradientDescent",
)
WIDTH = 128


def trained(tf: Any, cluster: Cluster, name: str) -> list[float]:
    """The losses of a network whose layers are reference variables of the ps: one is updated as
    soon as its gradient has come, while the worker still needs its value for the layer below."""
    v1 = tf.compat.v1
    more = (0.9,) if name == "Momentum" else ()
    with tf.Graph().as_default():
        made = [tf.sin(tf.linspace(0.0, 9.0 + at, WIDTH * WIDTH)) * 0.1 for at in range(4)]
        with tf.device(PS):
            # A server keeps variables by name, also after their session.
            layers = [
                v1.Variable(
                    tf.reshape(each, [WIDTH, WIDTH]), name=f"{name}{at}", use_resource=False
                )
                for at, each in enumerate(made)
            ]
        with tf.device(WORKER):
            features = tf.reshape(tf.cos(made[0]), [WIDTH, WIDTH])
            hidden = features
            for layer in layers:
                hidden = tf.tanh(tf.matmul(hidden, layer))
            loss = tf.reduce_mean(tf.square(hidden - features))
        with tf.device(PS):
            optimizer = getattr(v1.train, f"{name}Optimizer")(0.01, *more)
            train = optimizer.minimize(loss, colocate_gradients_with_ops=True)
        with session_as_written(tf, cluster.target("worker")) as run:
            run.run(v1.global_variables_initializer())
            return [float(run.run([loss, train])[0]) for _ in range(5)]


def test_training_with_reference_variables(
    tensorflow: Any, cluster: Cluster, stock: Cluster
) -> None:
    before = cluster.stats("ps")["served_mutable"]
    for name in OPTIMIZERS:
        losses = trained(tensorflow, cluster, name)
        assert losses == trained(tensorflow, stock, name), name
        assert losses[-1] != losses[0], name
    assert cluster.stats("ps")["served_mutable"] > before
