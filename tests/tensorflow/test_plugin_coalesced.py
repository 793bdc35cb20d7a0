# SPDX-License-Identifier: Apache-2.0
"""Small variables that one process reads of another cross as one tensor, between real servers."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.tensorflow.conftest import PLUGIN, STOCK, Cluster, running, session_as_written
from tests.tensorflow.test_plugin_faults import PAIR
from tests.tensorflow.test_plugin_paths import PS, WORKER

from tensorwire.launch import free_ports

pytestmark = pytest.mark.timeout(300)

WAYS = ("in_place", "shm", "tcp", "grpc")


@pytest.fixture(scope="module", params=["shm", "tcp"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with running(PAIR, TENSORWIRE_TF_PLAN="on", TENSORWIRE_TRANSPORT=request.param) as started:
        yield started


@pytest.fixture
def graph(tensorflow: Any) -> Iterator[None]:
    with tensorflow.Graph().as_default():
        yield


@pytest.fixture
def run(tensorflow: Any, cluster: Cluster, graph: None) -> Iterator[Any]:
    with session_as_written(tensorflow, cluster.target("worker")) as opened:
        yield opened


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


KINDS = ("float32", "float64", "bfloat16", "half", "int8", "int32", "int64", "bool", "complex64")
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
        # Of 128 KiB and more, each crosses alone: 128 x 128 of float64, int64 and complex64.
        assert received(cluster, "worker") - before == len(KINDS) * len(SHAPES) + 3 * 2
    assert coalesced(cluster) - built == len(expected) - 3 * 3


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


def test_what_is_left_alone(tensorflow: Any, cluster: Cluster, run: Any) -> None:
    """Variables in loops and in branches, of unknown shape, of strings, and reference variables,
    whose shape an assignment may change."""
    tf = tensorflow
    v1 = tf.compat.v1
    v1.disable_control_flow_v2()
    try:
        inner = [variable(tf, tf.fill([8], float(n))) for n in range(4)]

        def body(step: Any, sums: Any) -> tuple[Any, Any]:
            with tf.device(PS):
                read = [each.read_value() for each in inner]
            return step + 1, sums + tf.add_n(read)

        with tf.device(WORKER):
            looped = v1.while_loop(lambda step, _: step < 3, body, (0, tf.zeros([8])))[1]
            taken = v1.placeholder(tf.bool, ())

            def branch(factor: float) -> Any:
                with tf.device(PS):
                    read = [each.read_value() * 1.0 for each in inner]
                return tf.add_n(read) * factor

            branched = v1.cond(taken, partial(branch, 1.0), partial(branch, 2.0))
    finally:
        v1.enable_control_flow_v2()
    unknown = [variable(tf, tf.zeros([3]), shape=tf.TensorShape([None])) for _ in range(2)]
    with tf.device(PS):
        texts = [v1.Variable(["a", "b"], use_resource=True, name=named()) for _ in range(2)]
        references = [
            v1.Variable(tf.zeros([3]), use_resource=False, name=named()) for _ in range(2)
        ]
        longer = tf.group(
            [v1.assign(each, tf.ones([5]), validate_shape=False) for each in references]
        )
    alone = on_worker(tf, [*unknown, *texts, *references])
    built = coalesced(cluster)
    initialised(tf, run)
    assert (run.run(looped) == 18.0).all()
    assert (run.run(branched, {taken: True}) == 6.0).all()
    assert (run.run(branched, {taken: False}) == 12.0).all()
    run.run(longer)
    *_, one, other = run.run(alone)
    assert one.tolist() == other.tolist() == [1.0] * 5
    assert coalesced(cluster) - built == 0


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
    with running(PAIR) as cluster:
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
