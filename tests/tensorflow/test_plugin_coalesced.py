# SPDX-License-Identifier: Apache-2.0
"""Small variables that one process reads of another cross as one tensor, between real servers."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
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
    running,
    session_as_written,
)

from tensorwire.launch import free_ports

pytestmark = pytest.mark.timeout(300)

WAYS = ("in_place", "shm", "tcp", "grpc")


NUMBERS = itertools.count()


def named(word: str = "variable") -> str:
    """Servers know variables by their names, whichever session made them."""
    return f"{word}{next(NUMBERS)}"


def variable(tf: Any, value: Any, kind: str = "float32", **more: Any) -> Any:
    more = {"name": named(), **more}
    with tf.device(PS):
        return tf.compat.v1.Variable(tf.cast(value, kind), use_resource=True, **more)


def received(cluster: Cluster, job: str, task: int = 0) -> int:
    """Tensors so far."""
    stats = cluster.stats(job, task)
    return sum(stats[f"received_{way}"] for way in WAYS)


def coalesced(cluster: Cluster) -> int:
    """Variables so far, by the master of all sessions here."""
    return cluster.stats("worker")["coalesced_reads"]


def initialised(tf: Any, run: Any) -> None:
    run.run(tf.compat.v1.global_variables_initializer())


def on_worker(tf: Any, values: list[Any]) -> list[Any]:
    with tf.device(WORKER):
        return [tf.identity(value) for value in values]


FLOATS = ("float32", "float64", "bfloat16", "half", "complex64", "complex128")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
KINDS = (*FLOATS, *INTEGERS, "bool")
SHAPES = ((), (1,), (3,), (7, 5), (2, 64), (128, 128))


def test_one_tensor_for_each_type_and_shape(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    tf = tensorflow
    numbers = np.random.default_rng(5)
    expected = [
        numbers.integers(0, 2, shape).astype(tf.dtypes.as_dtype(kind).as_numpy_dtype)
        for kind in KINDS
        for shape in SHAPES
        for _ in range(3)
    ]
    reads = on_worker(tf, [variable(tf, value, value.dtype.name) for value in expected])
    initialised(tf, run)
    built = coalesced(cluster)
    for _ in range(5):
        before = received(cluster, "worker")
        for found, value in zip(run.run(reads), expected, strict=True):
            assert found.dtype == value.dtype
            np.testing.assert_array_equal(found, value)
        # Each of 128 KiB and more crosses alone.
        alone = sum(value.nbytes > 64 << 10 for value in expected)
        assert received(cluster, "worker") - before == (len(expected) - alone) / 3 + alone
    assert coalesced(cluster) - built == len(expected) - alone


def test_a_stack_is_bounded(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    """100 variables of 64 KiB are two stacks, of 64 and of 36."""
    tf = tensorflow
    reads = on_worker(tf, [variable(tf, tf.fill([1 << 14], float(n))) for n in range(100)])
    with tf.device(WORKER):
        total = tf.add_n(reads)
    initialised(tf, run)
    for _ in range(4):
        before = received(cluster, "worker")
        assert (run.run(total) == sum(range(100))).all()
        assert received(cluster, "worker") - before == 2


def test_each_step_has_the_newest_values(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    """Also of variables that the same step updates: what it reads after that is not coalesced."""
    tf = tensorflow
    variables = [variable(tf, tf.fill([40], float(n))) for n in range(20)]
    early = on_worker(tf, [each.read_value() for each in variables])
    with tf.device(PS):
        added = tf.group([each.assign_add(tf.ones([40])) for each in variables])
        with tf.control_dependencies([added]):
            updated = [each.read_value() for each in variables]
    late = on_worker(tf, updated)
    initialised(tf, run)
    for step in range(1, 6):
        before = received(cluster, "worker")
        for n, found in enumerate(run.run(late)):
            assert (found == n + step).all()
        assert received(cluster, "worker") - before == 20
        for n, found in enumerate(run.run(early)):
            assert (found == n + step).all()
        assert received(cluster, "worker") - before == 21
    now, then = run.run([early, late])
    for n, (found, updated_to) in enumerate(zip(now, then, strict=True)):
        assert (updated_to == n + 6).all()
        assert set(found) <= {n + 5.0, n + 6.0}  # without an order between them


@pytest.mark.parametrize("version", [1, 2])
def test_loops_and_branches_are_left_alone(
    tensorflow: Any, cluster: Cluster, run: Any, version: int
) -> None:
    tf = tensorflow
    v1 = tf.compat.v1
    inner = [variable(tf, tf.fill([8], float(n))) for n in range(4)]

    def read() -> Any:
        with tf.device(PS):
            values = [each.read_value() for each in inner]
        return tf.add_n(values)

    {1: v1.disable_control_flow_v2, 2: v1.enable_control_flow_v2}[version]()
    try:
        with tf.device(WORKER):
            looped = v1.while_loop(
                lambda step, _: step < 3,
                lambda step, sums: (step + 1, sums + read()),
                (0, tf.zeros([8])),
            )[1]
            taken = v1.placeholder(tf.bool, ())
            branched = v1.cond(taken, read, lambda: 2.0 * read())
    finally:
        v1.enable_control_flow_v2()
    initialised(tf, run)
    built = coalesced(cluster)
    assert (run.run(looped) == 18.0).all()
    assert (run.run(branched, {taken: True}) == 6.0).all()
    assert (run.run(branched, {taken: False}) == 12.0).all()
    assert coalesced(cluster) == built


def test_unknown_shapes_and_reference_variables_are_left_alone(
    tensorflow: Any, cluster: Cluster, run: Any
) -> None:
    """An assignment may give them another shape. Strings have no size."""
    tf = tensorflow
    v1 = tf.compat.v1
    unknown = [variable(tf, tf.zeros([3]), shape=tf.TensorShape([None])) for _ in range(2)]
    with tf.device(PS):
        texts = [v1.Variable(["a", "b"], use_resource=True, name=named()) for _ in range(2)]
        references = [
            v1.Variable(tf.zeros([3]), use_resource=False, name=named()) for _ in range(2)
        ]
        longer = tf.group(
            v1.assign(references[0], tf.ones([5]), validate_shape=False),
            unknown[1].assign(tf.ones([7])),
        )
    initialised(tf, run)
    built = coalesced(cluster)
    run.run(longer)
    found = run.run(on_worker(tf, [*unknown, *texts, *references]))
    assert [len(each) for each in found] == [3, 7, 2, 2, 5, 3]
    assert found[2].tolist() == [b"a", b"b"]
    assert coalesced(cluster) == built


def test_types_that_cannot_be_stacked(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    """TensorFlow's Unpack has no kernel for them."""
    tf = tensorflow
    words = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
    kinds = [name for name in ("int4", "uint4") if hasattr(tf, name)]
    with tf.device(PS):
        ones = [tf.bitcast(tf.ones([6], word), kind) for kind, word in words.items()]
        ones += [tf.cast(tf.ones([6], tf.int8), kind) for kind in kinds]
        variables = [
            tf.compat.v1.Variable(value, use_resource=True, name=named())
            for value in ones
            for _ in range(2)
        ]
    with tf.device(WORKER):
        back = [
            tf.bitcast(each.read_value(), words[each.dtype.name])
            if each.dtype.name in words
            else tf.cast(each.read_value(), tf.int8)
            for each in variables
        ]
    initialised(tf, run)
    built = coalesced(cluster)
    for found in run.run(back):
        assert found.tolist() == [1] * 6
    assert coalesced(cluster) == built


def test_a_shape_that_is_not_as_declared(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    """As an assignment may have it of a variable that asks for no check, or a checkpoint."""
    tf = tensorflow
    variables = [variable(tf, tf.zeros([3]), validate_shape=False) for _ in range(2)]
    fed = tf.compat.v1.placeholder(tf.float32, None)
    longer = variables[0].assign(fed, read_value=False)
    reads = on_worker(tf, variables)
    initialised(tf, run)
    run.run(reads)
    run.run(longer, {fed: np.ones(5, np.float32)})
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"(?s)Shapes of all .*tensorwire/coalesced"
    ):
        run.run(reads)


def test_a_read_that_is_fed(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    tf = tensorflow
    values = [variable(tf, tf.fill([5], float(n))).read_value() for n in range(6)]
    reads = on_worker(tf, values)
    initialised(tf, run)
    for _ in range(3):
        found = run.run(reads, {values[2]: np.full(5, 70.0, np.float32)})
        assert [each[0] for each in found] == [0.0, 1.0, 70.0, 3.0, 4.0, 5.0]


def test_a_part_of_a_stack_is_kept_and_written_to(
    tensorflow: Any, cluster: Cluster, run: Any
) -> None:
    """The worker's variables take what they are assigned, and are updated in place, while their
    sender updates its own."""
    tf = tensorflow
    theirs = [variable(tf, tf.fill([64, 64], float(n))) for n in range(40)]
    with tf.device(WORKER):
        mine = [
            tf.compat.v1.Variable(tf.zeros([64, 64]), use_resource=True, name=named())
            for _ in theirs
        ]
        taken = tf.group(
            [to.assign(each.read_value()) for to, each in zip(mine, theirs, strict=True)]
        )
        added = tf.group([each.assign_add(tf.ones([64, 64])) for each in mine])
        scattered = tf.group(
            [each.scatter_add(tf.IndexedSlices(tf.ones([1, 64]), [3])) for each in mine]
        )
    with tf.device(PS):
        moved = tf.group([each.assign_add(tf.fill([64, 64], 100.0)) for each in theirs])
    initialised(tf, run)
    for step in range(5):
        run.run(taken)
        run.run(moved)
        run.run(added)
        run.run(scattered)
        for n, found in enumerate(run.run(mine)):
            assert (np.delete(found, 3, 0) == n + step * 100 + 1).all()
            assert (found[3] == n + step * 100 + 2).all()
        for n, found in enumerate(run.run(theirs)):
            assert (found == n + (step + 1) * 100).all()


def test_a_variable_without_a_value_is_named(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    tf = tensorflow
    reads = on_worker(tf, [variable(tf, tf.zeros([3]), name=named("unset")) for _ in range(5)])
    with pytest.raises(tf.errors.FailedPreconditionError, match="unset"):
        run.run(reads)
    initialised(tf, run)
    assert all((found == 0).all() for found in run.run(reads))


@pytest.mark.parametrize("holder", [PLUGIN, STOCK])
def test_two_readers_and_a_holder_that_knows_nothing(
    tensorflow: Any, graph: None, holder: str
) -> None:
    """Both other tasks read the variables. Their holder may be a stock server: the stack is made by
    operations that it has."""
    tf = tensorflow
    tasks = {("ps", 0): holder, ("ps", 1): PLUGIN, ("worker", 0): PLUGIN}
    with running(tasks, TENSORWIRE_TF_PLAN="on") as cluster:
        variables = [variable(tf, tf.fill([6], float(n))) for n in range(30)]
        reads = on_worker(tf, variables)
        with tf.device("/job:ps/task:1"):
            total = tf.add_n([each.read_value() + 0.0 for each in variables])
        with session_as_written(tf, cluster.target("worker")) as run:
            initialised(tf, run)
            for _ in range(4):
                before = [received(cluster, "worker"), received(cluster, "ps", 1)]
                found, summed = run.run([reads, total])
                assert [each[0] for each in found] == list(range(30))
                assert (summed == sum(range(30))).all()
                # And the sum, which the session fetches by way of the worker.
                assert received(cluster, "worker") - before[0] == 2
                assert received(cluster, "ps", 1) - before[1] == 1


def test_without_the_setting_each_crosses_alone(tensorflow: Any, graph: None) -> None:
    tf = tensorflow
    with running(PAIR, TENSORWIRE_TF_PLAN="off") as cluster:
        reads = on_worker(tf, [variable(tf, tf.zeros([3])) for _ in range(5)])
        with session_as_written(tf, cluster.target("worker")) as run:
            initialised(tf, run)
            before = received(cluster, "worker")
            run.run(reads)
            assert received(cluster, "worker") - before == 5
            assert coalesced(cluster) == 0


COORDINATOR = """
import json, sys
import tensorflow as tf
import tensorwire.tensorflow as tt
tt.enable()
tf.config.experimental_connect_to_cluster(
    tf.train.ClusterSpec(json.loads(sys.argv[1])),
    job_name="chief", task_index=0, protocol="grpc+tensorwire",
)
with tf.device("/job:ps/task:0"):
    variables = [tf.Variable(tf.fill([50], float(n))) for n in range(40)]

@tf.function
def step():
    with tf.device("/job:worker/task:0"):
        total = tf.add_n([v.read_value() * 2.0 for v in variables])
    with tf.device("/job:ps/task:0"):
        for v in variables:
            v.assign_add(tf.ones([50]))
    return total

for n in range(10):
    got = step().numpy()
    assert (got == 2.0 * (780 + 40 * n)).all(), (n, got)
print(tt.stats()["coalesced_reads"])
"""


def test_a_function_of_a_connected_cluster(tensorflow: Any) -> None:
    """Each step reads the values that it has before it updates them."""
    with running(PAIR, TENSORWIRE_TF_PLAN="on") as cluster:
        spec = {**cluster.spec, "chief": [f"127.0.0.1:{free_ports(1)[0]}"]}
        done = subprocess.run(
            [sys.executable, "-c", COORDINATOR, json.dumps(spec)],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1", "TENSORWIRE_TF_PLAN": "on"},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert int(done.stdout) == 40
        assert received(cluster, "worker") < 40
