# SPDX-License-Identifier: Apache-2.0
"""What crosses tasks of TensorFlow graphs, inferred and traced."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("tensorflow") is None:
    pytest.skip("there is no TensorFlow", allow_module_level=True)

import tensorflow as tf
from tensorwire import graph
from tensorwire.bench.inventories import load
from tensorwire.bench.suites.train.data import inputs
from tensorwire.bench.suites.train.models import find
from tensorwire.bench.suites.train.models.layers import Network
from tensorwire.bench.suites.train.options import Options
from tensorwire.bench.suites.train.updates import choose
from tensorwire.graph import tensorflow as ours
from tensorwire.launch import free_ports

pytestmark = pytest.mark.timeout(180)  # the import of TensorFlow takes seconds
v1 = tf.compat.v1
PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


def training(model: str, workers: int, batch: int = 2) -> tuple[tf.Graph, list[Any]]:
    """The steps of all workers of ``tensorwire train`` with one parameter server, and what they
    fetch."""
    whole, fetches = tf.Graph(), []
    options = Options(
        model=model,
        batch_size=batch,
        job_name="worker",
        ps_hosts=["h:1"],
        worker_hosts=[f"h:{2 + each}" for each in range(workers)],
        cross_replica_sync=False,
    )
    with whole.as_default():
        for worker in range(workers):
            device = f"/job:worker/replica:0/task:{worker}/cpu:0"
            with v1.variable_scope(f"worker_{worker}"), tf.device(device):
                source = inputs.synthetic(options.input_shape(), batch, options.classes(), 1)
                update = choose(options.but(task_index=worker), device)
                net = Network(update, training=True, seed=1)
                logits = find(model).logits(net, source.images, options.classes())
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(source.labels, logits)
                step = update.train(tf.reduce_mean(losses))
            fetches += [step.global_step, step.done]
    return whole, fetches


@pytest.mark.parametrize("model", ["alexnet", "vgg16", "lenet", "fcn5"])
def test_the_models_of_train(model: str) -> None:
    """A step takes all parameters and gives all gradients; both are in the inventory."""
    whole, fetches = training(model, 2)
    edges = graph.edges(whole, fetches=fetches)
    tensors = sorted(4 * tensor.elements for tensor in load(model))
    for worker in ("worker:0", "worker:1"):
        for source, target in (("ps:0", worker), (worker, "ps:0")):
            found = [e for e in edges if (e.source, e.target) == (source, target)]
            large = [e for e in found if e.dtype == "float32" and e.shape != (0,) and e.shape]
            assert sorted(e.nbytes or 0 for e in large) == tensors
            assert {e.way for e in large} == {"placed"}
    total = sum(edge.nbytes or 0 for edge in edges)
    assert 4 * sum(tensors) <= total <= 4 * sum(tensors) + 1024
    assert {edge.seen for edge in edges} == {"inferred"}


def test_a_dry_run_sends_what_was_inferred() -> None:
    whole, fetches = training("lenet", 2)
    inferred = graph.edges(whole, fetches=fetches)
    traced = graph.trace(whole, fetches, steps=2)

    def large(edges: list[graph.Edge]) -> Counter[tuple[Any, ...]]:
        return Counter(
            (e.source, e.target, e.shape) for e in edges if e.dtype == "float32" and e.nbytes
        )

    assert large(traced) == large(inferred)
    assert {edge.seen for edge in traced} == {"traced"}
    assert {edge.way for edge in traced} == {"placed"}


def looping() -> tuple[tf.Graph, Any, list[Any]]:
    """Text, an unknown batch, and a loop whose body is on another task."""
    whole = tf.Graph()
    with whole.as_default():
        with tf.device(PS):
            weights = v1.get_variable("weights", [4, 8], use_resource=True)
            words = tf.constant(["a", "b"])
            x = v1.placeholder(tf.float32, [None, 4], name="x")
        with tf.device(WORKER):
            y = tf.matmul(x, weights)
            total = tf.reduce_sum(tf.strings.length(words))

            def body(step: Any, value: Any) -> tuple[Any, Any]:
                with tf.device(PS):
                    doubled = tf.multiply(value, 2.0, name="doubled")
                return step + 1, doubled + 1.0

            _, y = tf.while_loop(lambda step, _: step < 3, body, (0, y))
            loss = tf.reduce_sum(y) + tf.cast(total, tf.float32)
        with tf.device(PS):
            done = weights.assign_sub(tf.gradients(loss, weights)[0])
    return whole, x, [loss, done.op]


def test_text_loops_and_unknown_sizes() -> None:
    whole, _, fetches = looping()
    by_name = {edge.name: edge for edge in graph.edges(whole, fetches=fetches)}
    assert by_name["Const"].dtype == "string"
    assert by_name["Const"].way == "stock"
    assert by_name["x"].shape == (None, 4)
    assert by_name["x"].way == "described"
    (inside,) = (edge for name, edge in by_name.items() if name.endswith("doubled"))
    assert (inside.per, inside.way, inside.source) == ("iteration", "stock", "ps:0")
    assert by_name["MatMul/ReadVariableOp"].way == "placed"


@pytest.mark.parametrize("there", [0, 1], ids=["first", "last"])
@pytest.mark.parametrize("kind", ["cond", "switch_case"])
def test_what_branches_give(kind: str, there: int) -> None:
    """One of the branches is on another task; which of them is last does not matter."""
    whole = tf.Graph()
    with whole.as_default():
        with tf.device(WORKER):
            x = v1.placeholder(tf.float32, [100], name="x")
            which = v1.placeholder(tf.int32, [], name="which")

        def on_ps() -> Any:
            with tf.device(PS):
                return tf.fill([100], 3.0, name="filled")

        def on_worker() -> Any:
            with tf.device(WORKER):
                return x + 1.0

        branches = [on_worker, on_worker]
        branches[there] = on_ps
        with tf.device(WORKER):
            y = tf.cond(which < 1, *branches) if kind == "cond" else tf.switch_case(which, branches)
            z = tf.reduce_sum(y)

    def large(edges: list[graph.Edge]) -> list[tuple[Any, ...]]:
        return [(e.source, e.target, e.shape) for e in edges if e.dtype == "float32" and e.nbytes]

    wanted = [("ps:0", "worker:0", (100,))]
    assert large(graph.edges(whole, fetches=[z])) == wanted
    assert large(graph.trace(whole, [z], {x: [1.0] * 100, which: there})) == wanted


@pytest.mark.parametrize("kind", ["cond", "switch_case", "while_loop"])
def test_branches_and_loops_that_read_a_variable_of_another_task(kind: str) -> None:
    """They take the variable, and all but it is where they are."""
    whole = tf.Graph()
    with whole.as_default():
        with tf.device(PS):
            weights = v1.get_variable("weights", [100], use_resource=True)
        with tf.device(WORKER):
            which = v1.placeholder(tf.int32, [], name="which")
            branches = [lambda: weights * 2.0, lambda: weights + 1.0]
            if kind == "cond":
                y = tf.cond(which < 1, *branches)
            elif kind == "switch_case":
                y = tf.switch_case(which, branches)
            else:
                start = (which, tf.zeros([100]))
                _, y = tf.while_loop(lambda n, _: n < 3, lambda n, x: (n + 1, x + weights), start)
            z = tf.reduce_sum(y)

    def data(edges: list[graph.Edge]) -> set[tuple[Any, ...]]:
        floats = (e for e in edges if e.dtype == "float32" and not e.name.startswith("^"))
        return {(edge.source, edge.target, edge.shape) for edge in floats}

    edges = graph.edges(whole, fetches=[z])
    assert "resource" not in {edge.dtype for edge in edges}
    assert data(edges) == {("ps:0", "worker:0", (100,))}
    traced = [data(graph.trace(whole, [z], {which: number})) for number in (0, 1)]
    one_came = {("ps:0", "worker:0", (100,)), ("ps:0", "worker:0", None)}  # of the branch not taken
    assert data(edges) <= set.union(*traced) <= one_came


def test_shapes_in_functions_follow_from_what_they_are_given() -> None:
    """Also where a function hands a variable on, what it computes of one, and where one branch is
    not for the shapes that come."""
    whole = tf.Graph()
    with whole.as_default():
        with tf.device(PS):
            weights = v1.get_variable("weights", [4, 8], use_resource=True)
        with tf.device(WORKER):
            x = v1.placeholder(tf.float32, [3, 4], name="x")

        @tf.function
        def product(x: Any) -> Any:
            with tf.device(PS):
                return tf.matmul(x, weights, name="product")

        @tf.function
        def step(x: Any) -> Any:
            def as_it_is() -> Any:
                with tf.device(PS):
                    return tf.matmul(x, weights + 1.0)

            def never() -> Any:
                with tf.device(WORKER):
                    return tf.matmul(x, tf.ones([7, 8]))

            with tf.device(WORKER):
                if tf.equal(tf.shape(x)[1], 7):
                    return never()
                return as_it_is() + product(x)

        with tf.device(WORKER):
            z = tf.identity(step.get_concrete_function(tf.TensorSpec([None, None]))(x))
    found = graph.edges(whole, fetches=[z])
    data = [e for e in found if e.dtype == "float32" and not e.name.startswith("^")]
    assert {(e.source, e.target, e.shape) for e in data} == {
        ("worker:0", "ps:0", (3, 4)),
        ("ps:0", "worker:0", (3, 8)),
    }


def test_what_varies_within_each_step_varies() -> None:
    whole = tf.Graph()
    with whole.as_default(), tf.device(WORKER):
        x = v1.placeholder(tf.float32, [None, 4], name="x")

        def body(step: Any, value: Any) -> tuple[Any, Any]:
            with tf.device(PS):
                return step + 1, tf.concat([value, value], 0, name="grown")

        shapes = (tf.TensorShape([]), tf.TensorShape([None, 4]))
        _, y = tf.while_loop(lambda step, _: step < 3, body, (0, x), shape_invariants=shapes)
        z = tf.reduce_sum(y)
    found = graph.trace(whole, [z], {x: [[1.0] * 4] * 3}, steps=2)
    (inside,) = (edge for edge in found if "grown" in edge.name or edge.name.endswith("concat"))
    assert (inside.shape, inside.seen) == ((None, 4), "varies")


def test_what_has_no_memory_stays_as_it_is() -> None:
    """Text and a list are listed. What takes the handle of a variable is with the variable, as
    TensorFlow's placer has it. Only what takes handles of two tasks leaves one of them to an edge,
    and that one is listed, too."""
    whole = tf.Graph()
    with whole.as_default():
        with tf.device(PS):
            text = tf.constant(["a", "b"])
            several = tf.raw_ops.TensorListFromTensor(tensor=tf.ones([3, 4]), element_shape=[4])
            handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[4])
            numbers = tf.ones([4])
        with tf.device(WORKER):
            other = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[4], shared_name="other")
            fetches = [
                tf.identity(text),
                tf.raw_ops.TensorListLength(input_handle=several),
                tf.raw_ops.VarIsInitializedOp(resource=tf.identity(handle)),
                tf.identity(numbers),
            ]
    found = graph.edges(whole, fetches=fetches)
    ways = {edge.dtype: edge.way for edge in found}
    assert ways == {"string": "stock", "variant": "stock", "float32": "placed"}
    assert {edge.nbytes for edge in found if edge.way == "stock"} <= {None, 0}
    with whole.as_default():
        both = tf.raw_ops.IdentityN(input=[other, handle])
    (edge,) = graph.edges(whole, fetches=both)
    assert (edge.source, edge.target) == ("ps:0", "worker:0")
    assert (edge.dtype, edge.way, edge.nbytes) == ("resource", "stock", None)


def test_shapes_that_vary_are_seen_to() -> None:
    whole, x, fetches = looping()
    same = graph.trace(whole, fetches, {x: [[1.0] * 4] * 3}, steps=2)
    assert {edge.seen for edge in same} == {"traced"}
    found = graph.trace(whole, fetches, lambda step: {x: [[1.0] * 4] * (3 + step)}, steps=2)
    (inside,) = (edge for edge in found if edge.name.endswith("mul") or "doubled" in edge.name)
    assert (inside.shape, inside.seen, inside.per) == ((None, 8), "varies", "iteration")
    (gradient,) = (e for e in found if e.target == "ps:0" and e.shape == (4, 8))
    assert (gradient.seen, gradient.per, gradient.way) == ("traced", "step", "placed")
    (text,) = (edge for edge in found if edge.dtype == "string")
    assert text.way == "stock"


def test_a_real_cluster_sends_what_a_dry_run_does() -> None:
    cluster = tf.train.ClusterSpec(
        {
            job: [f"127.0.0.1:{port}"]
            for job, port in zip(("ps", "worker"), free_ports(2), strict=True)
        }
    )
    servers = [v1.train.Server(cluster, job_name=job) for job in ("ps", "worker")]
    whole, x, fetches = looping()
    feeds = {x: [[1.0] * 4] * 3}
    with v1.Session(servers[1].target, graph=whole) as session:
        variables = whole.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)
        session.run([each.initializer for each in variables])
        real = graph.trace(whole, fetches, feeds, session=session)
        metadata = v1.RunMetadata()
        session.run(fetches, feeds, run_metadata=metadata)

    def data(edges: list[graph.Edge]) -> Counter[tuple[Any, ...]]:
        return Counter(
            (e.source, e.target, e.shape, e.dtype, e.seen, e.per) for e in edges if e.shape
        )

    assert data(real) == data(graph.trace(whole, fetches, feeds))
    with pytest.raises(graph.ScopeError, match="without a trace of its partitions"):
        graph.edges(metadata)


def test_a_function_with_a_function_in_it() -> None:
    weights = tf.Variable(tf.ones([4, 8]))

    @tf.function
    def inner(x: Any) -> Any:
        with tf.device("/job:worker/task:1"):
            return tf.nn.relu(x)

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def step(x: Any) -> Any:
        with tf.device(WORKER):
            y = x @ tf.ones([4, 8], name="ones")
        y = inner(y)
        with tf.device(WORKER):
            return tf.reduce_sum(y)

    found = graph.edges(step.get_concrete_function())
    assert [(e.source, e.target, e.shape) for e in found if not e.name.startswith("^")] == [
        ("worker:0", "worker:1", (None, 8)),
        ("worker:1", "worker:0", (None, 8)),
    ]
    assert weights.shape == (4, 8)


def test_machines_are_tasks_unless_they_are_named() -> None:
    whole, _, fetches = looping()
    assert graph.edges(whole, fetches=fetches, machines={"ps": "host", "worker": "host"}) == []
    where = {"ps": "a", "worker:0": "b"}
    names = [fetches[0].name, fetches[1].name]
    found = graph.edges(whole.as_graph_def(), fetches=names, machines=where)
    assert {(edge.source, edge.target) for edge in found} == {("a", "b"), ("b", "a")}
    with pytest.raises(graph.ScopeError, match="no operation of the graph is on a task"):
        graph.trace(tf.Graph(), [])
    step = tf.function(lambda: tf.constant(1.0)).get_concrete_function()
    with pytest.raises(TypeError, match=r"not of a .*Function: graph.edges takes"):
        graph.trace(step, [])


def test_a_saved_model_and_a_graph_in_a_file(tmp_path: Path) -> None:
    from tensorwire.graph import sources

    whole, _, _ = looping()
    (tmp_path / "graph.pb").write_bytes(whole.as_graph_def().SerializeToString())
    (tmp_path / "graph.pbtxt").write_text(str(whole.as_graph_def()))
    found = [graph.edges(sources.load(tmp_path / name)) for name in ("graph.pb", "graph.pbtxt")]
    assert found[0] == found[1] == graph.edges(whole)

    module = tf.Module()
    module.step = tf.function(lambda x: x + 1, input_signature=[tf.TensorSpec([2])])
    tf.saved_model.save(module, tmp_path / "saved")
    sources.check(tmp_path / "saved", None)
    assert ours.takes(sources.load(tmp_path / "saved"))
    (tmp_path / "other.pb").write_bytes(b"\xff" * 40)
    with pytest.raises(ValueError, match="is no GraphDef"):
        sources.load(tmp_path / "other.pb")
