# SPDX-License-Identifier: Apache-2.0
"""What ranks of the tests with TensorFlow run, a function each."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensorflow as tf
import tensorwire.horovod.tensorflow as hvd
import tensorwire.horovod.tensorflow.keras as hvd_keras


def moved(mine: Any) -> list[Any]:
    return [
        hvd.allreduce(mine),
        hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16),
        hvd.allgather(mine),
        hvd.broadcast(mine, 1),
        hvd.reducescatter(mine, op=hvd.Sum),
        *hvd.alltoall(mine, splits=[1, 1]),
        hvd.allreduce(tf.reduce_sum(mine)),
        hvd.allreduce(tf.one_hot(hvd.rank(), 2) * mine, op=hvd.Adasum),
    ]


def reduced(mine: Any) -> list[Any]:
    both = hvd.grouped_allreduce([mine, tf.cast(mine, tf.float64)], op=hvd.Sum, name="both")
    return [
        *(tf.cast(each, tf.float32) for each in both),
        *hvd.grouped_allreduce([mine], op=hvd.Max, name="most"),
        hvd.allreduce(mine, op=hvd.Min),
        hvd.allreduce(mine, op=hvd.Max, name="one"),
        hvd.allreduce(mine, op=hvd.Product),
        hvd_keras.allreduce(mine, "least", op=hvd_keras.Min),
        hvd_keras.allreduce(mine, op=hvd_keras.Product),
    ]


def of_some_ranks() -> list[Any]:
    """The second rank by itself, and then both; then an uneven number of steps."""
    rank = hvd.rank()
    mine = tf.constant([rank + 1.0])
    alone = hvd.add_process_set([1])
    hvd.barrier()
    found = [alone.included(), alone.rank(), alone.size()]
    if alone.included():
        hvd_keras.barrier(process_set=alone)
        moved_alone = [
            hvd.allreduce(mine, op=hvd.Sum, process_set=alone),
            hvd.broadcast(mine, 1, process_set=alone),
            *hvd.grouped_allreduce([mine], op=hvd.Max, process_set=alone),
        ]
        found += [each.numpy().tolist() for each in moved_alone]
    found += [hvd.remove_process_set(alone), hvd.remove_process_set(alone)]
    steps = tf.function(lambda name: hvd.allreduce(mine, op=hvd.Sum, name=name))
    found += [steps(f"step{i}").numpy().tolist() for i in range(rank + 1)]
    return [*found, hvd.join()]


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error).partition(": ")[2]
    return ""


def all_refused() -> list[str]:
    """What is said of tensors that no operation takes."""
    waves, words = tf.constant([1j], tf.complex64), tf.constant(["word"])
    calls: list[Callable[[], Any]] = [
        lambda: hvd.allreduce(tf.constant([True])),
        lambda: hvd.allreduce(waves, op=hvd.Sum),
        lambda: hvd.allgather(waves),
        lambda: hvd.broadcast(words, 0),
        lambda: hvd.reducescatter(tf.constant(1.0)),
    ]
    return [refused(call) for call in calls]


def weighed(tensor: Any) -> Any:
    """A sum in which each row counts otherwise: by its number, and by this rank."""
    rows = tf.range(tf.shape(tensor)[0])
    return tf.reduce_sum(tensor * tf.cast((rows + 1) * (hvd.rank() + 1), tensor.dtype))


def losses(mine: Any, other: Any) -> list[Any]:
    """Of each operation; ``mine`` has 3 rows on rank 0 and 2 on rank 1, ``other`` has 3 on both."""
    gives = [1, 2] if hvd.rank() == 0 else [2, 0]
    halves = hvd.Compression.fp16
    grouped = hvd.grouped_allgather([mine, other, mine[0]])
    in_groups = hvd.grouped_reducescatter([other, tf.cast(other, tf.float64)], op=hvd.Sum)
    return [
        weighed(hvd.allgather(mine)),
        tf.add_n([(i + 1.0) * weighed(each) for i, each in enumerate(grouped)]),
        weighed(hvd.broadcast(other, 1)),
        weighed(hvd.alltoall(mine, splits=gives)[0]),
        weighed(hvd.reducescatter(other)),
        weighed(hvd.reducescatter(other, op=hvd.Sum, prescale_factor=0.25, compression=halves)),
        weighed(in_groups[0]) + tf.cast(weighed(in_groups[1]), tf.float32),
        tf.reduce_sum(tf.gather(hvd.allgather(mine), [0, 3])),
        weighed(hvd.allreduce(other, op=hvd.Sum, postscale_factor=0.5)),
    ]


def through_operations(mine: Any, other: Any) -> list[list[Any]]:
    """The gradients of both tensors; None where it is not in the operation."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([mine, other])
        found = losses(mine, other)
    return [tape.gradient(each, [mine, other]) for each in found]


def gradients() -> dict[str, Any]:
    """And what a session of TensorFlow 1 does."""
    mine, other = tf.ones([3 - hvd.rank()]), tf.ones([3])

    def told(found: list[list[Any]]) -> list[Any]:
        return [[each if each is None else each.numpy().tolist() for each in two] for two in found]

    with tf.GradientTape() as outer:
        outer.watch(mine)
        with tf.GradientTape() as tape:
            tape.watch(mine)
            cubes = tf.reduce_sum(hvd.allgather(mine) ** 3)
        once = tape.gradient(cubes, mine)
    twice = outer.gradient(once, mine)
    called = tf.function(losses)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([mine, other])
        of_a_function = called(mine, other)
    refused = ""
    try:
        with tf.GradientTape() as one:
            one.watch(other)
            most = hvd.reducescatter(other, op=hvd.Max)
        one.gradient(most, other)
    except ValueError as error:
        refused = str(error)
    return {
        "eager": told(through_operations(mine, other)),
        "function": told(tf.function(through_operations)(mine, other)),
        "of a function": told([tape.gradient(each, [mine, other]) for each in of_a_function]),
        "twice": [once.numpy().tolist(), twice.numpy().tolist()],
        "refused": refused,
        "graph": of_a_graph(),
    }


def of_a_graph() -> list[Any]:
    """What rank 1 has in the variables of a session, and what eager execution says."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for i in range(2):
            tf.compat.v1.get_variable(f"v{i}", initializer=tf.fill([2], hvd.rank() + i + 1.0))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(1))
        found = [each.tolist() for each in session.run(tf.compat.v1.global_variables())]
    try:
        hvd_keras.broadcast_global_variables(1)
    except RuntimeError as error:
        return [found, str(error)]
    return [found, ""]


def adasum_of_gradients() -> Any:
    """They are parallel: twice and four times the ones."""
    weights = tf.Variable(tf.ones([2]))
    with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum) as tape:
        loss = (2.0 + 2 * hvd.rank()) * tf.reduce_sum(weights)
    return tape.gradient(loss, [weights])[0]


def of_slices() -> Any:
    found = hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]), [hvd.rank()], [2, 2]), op=hvd.Sum)
    return tf.convert_to_tensor(found)


def trained_by_tape() -> list[float]:
    tf.random.set_seed(hvd.rank())
    weights = tf.Variable(tf.random.normal([4, 2]))
    hvd.broadcast_variables([weights], root_rank=0)
    optimizer = tf.keras.optimizers.SGD(0.1)
    start = weights.numpy()
    batches = np.random.default_rng(7).random((2, 8, 4), np.float32)

    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch @ weights))
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply_gradients(zip(tape.gradient(loss, [weights]), [weights], strict=True))

    step(tf.constant(batches[hvd.rank()]))
    with tf.GradientTape() as tape:
        both = tf.Variable(start)
        loss = tf.reduce_mean(tf.square(batches.reshape(16, 4) @ both))
    wanted = start - 0.1 * tape.gradient(loss, both).numpy()
    return [float(np.abs(weights.numpy() - wanted).max()), *weights.numpy().ravel().tolist()]


def trained_by_keras() -> list[Any]:
    tf.keras.utils.set_random_seed(hvd.rank())
    model = tf.keras.Sequential([tf.keras.layers.Dense(3), tf.keras.layers.Dense(1)])
    optimizer = hvd_keras.DistributedOptimizer(tf.keras.optimizers.Adam(0.01))
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    generator = np.random.default_rng(hvd.rank())
    history = model.fit(
        generator.random((32, 4)),
        generator.random((32, 1)),
        epochs=2,
        batch_size=16,
        verbose=0,
        callbacks=[
            hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd_keras.callbacks.MetricAverageCallback(),
            hvd_keras.callbacks.LearningRateWarmupCallback(0.01, warmup_epochs=2),
        ],
    )
    values = [each.numpy().tolist() for each in model.variables]
    return [history.history["lr"], *values, *history.history["loss"]]


def best_model() -> list[Any]:
    """Of a training that gets worse: after which epoch the loss was least, whether the file of rank
    0 has the model of then, the files in its folder, and what is said where no file is set."""
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False)])
    model.build((None, 1))
    optimizer = hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.12))
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    model.set_weights([np.zeros((1, 1), np.float32)])
    weights: list[float] = []
    keep = tf.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: weights.append(float(model.get_weights()[0][0, 0]))
    )
    best = hvd_keras.callbacks.BestModelCheckpoint()

    def fit(callbacks: list[Any]) -> Any:
        threes = np.full((1, 1), 3.0, np.float32)  # each step overshoots more than the one before
        data = {"validation_data": (threes, threes), "epochs": 3, "verbose": 0}
        return model.fit(threes, threes, callbacks=callbacks, **data)

    try:
        fit([best])
        said = ""
    except ValueError as error:
        said = str(error)
    with tempfile.TemporaryDirectory() as folder:
        best.filepath = Path(folder) / "best.keras"
        average = hvd_keras.callbacks.MetricAverageCallback()
        history = fit([average, keep, *([best] if hvd.rank() == 0 else [])])
        epoch = int(np.argmin(history.history["val_loss"]))
        same = None
        if hvd.rank() == 0:
            saved = tf.keras.models.load_model(best.filepath, compile=False)
            same = float(saved.get_weights()[0][0, 0]) == weights[epoch] != weights[-1]
        return [epoch, same, sorted(os.listdir(folder)), said]


def in_two_passes(average: bool) -> list[float]:
    """What two passes make of a variable: Keras averages them, Horovod adds them up unless it is
    told to average."""
    variable = tf.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(
        tf.keras.optimizers.SGD(1.0),
        backward_passes_per_step=2,
        average_aggregated_gradients=average,
    )

    @tf.function  # type: ignore[untyped-decorator]
    def step(gradient: Any) -> None:
        optimizer.apply_gradients([(gradient, variable)])

    found = []
    for scale in (1.0, 3.0):
        step(tf.constant([scale, scale]) * (hvd.rank() + 1.0))
        found += variable.numpy().tolist()
    return found


def with_local_layers() -> dict[str, Any]:
    """Gradients of a layer of all ranks and of a local one, and what optimizers make of them. Each
    rank's gradients are its number, from 1 on."""

    def layer(build: bool = True) -> Any:
        made = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        if build:
            made.build((None, 1))
        return made

    def of_tape(scale: bool) -> list[float]:
        shared, local = layer(), layer()
        weights = [*shared.trainable_weights, *local.trainable_weights]
        with tf.GradientTape() as tape:
            loss = (hvd.rank() + 1.0) * tf.reduce_sum(
                shared(tf.ones([1, 1])) + local(tf.ones([1, 1]))
            )
        tape = hvd.PartialDistributedGradientTape(
            tape, local_layers=[local], scale_local_gradients=scale
        )
        return [float(each[0, 0]) for each in tape.gradient(loss, weights)]

    def of_optimizer(passes: int) -> list[float]:
        shared, local = layer(), layer()
        weights = [*local.trainable_weights, *shared.trainable_weights]
        optimizer = hvd_keras.PartialDistributedOptimizer(
            tf.keras.optimizers.SGD(1.0), backward_passes_per_step=passes, local_layers=local
        )
        for _ in range(passes):
            gradient = tf.fill([1, 1], hvd.rank() + 1.0)
            optimizer.apply_gradients([(gradient, each) for each in weights])
        return [float(each.numpy()[0, 0]) for each in (shared.kernel, local.kernel)]

    try:
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=layer(build=False))
    except ValueError as error:
        refused = str(error)
    passes = [1] if tf.keras.Model.__module__.startswith("tf_keras") else [1, 2]
    return {
        "tape": [of_tape(scale) for scale in (True, False)],
        "optimizer": [of_optimizer(each) for each in passes],
        "refused": refused,
    }


def batch_norm() -> list[float]:
    """How far SyncBatchNormalization on uneven shares is from one of the whole batch."""
    shares = [slice(0, 3), slice(3, 8)]
    whole, weights = np.random.default_rng(5).random((2, 8, 4), np.float32)
    plain = tf.keras.layers.BatchNormalization(momentum=0.5)
    synced = hvd.SyncBatchNormalization(momentum=0.5)
    everything = tf.constant(whole * 3 + 20)
    mine = everything[shares[hvd.rank()]]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([everything, mine])
        wanted, found = plain(everything, training=True), synced(mine, training=True)
        of_wanted = tf.reduce_sum(wanted * weights)
        of_found = tf.reduce_sum(found * weights[shares[hvd.rank()]])
    of_everything = tape.gradient(of_wanted, everything)[shares[hvd.rank()]]
    pairs = [
        (found, wanted[shares[hvd.rank()]]),
        (tape.gradient(of_found, mine), of_everything),
        (synced.moving_mean, plain.moving_mean),
        (synced.moving_variance, plain.moving_variance),
    ]
    return [float(tf.reduce_max(tf.abs(each - other))) for each, other in pairs]


def masked_batch_norm() -> list[Any]:
    """Mean and variance of ones on rank 0 and fives on rank 1, of which a mask leaves four and one,
    four and none, or none at all; and whether gradients are numbers."""
    rank = hvd.rank()
    found: list[Any] = []
    for counts in ([4, 1], [4, 0], [0, 0]):
        synced = hvd.SyncBatchNormalization(momentum=0.0)
        inputs = tf.fill([1, 4, 1], [1.0, 5.0][rank])
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            mask = tf.constant([[i < counts[rank] for i in range(4)]])
            squares = tf.square(tf.function(synced)(inputs, training=True, mask=mask))
        numbers = tf.math.is_finite(tape.gradient(squares, inputs))
        moments = [float(each[0]) for each in (synced.moving_mean, synced.moving_variance)]
        found.append([*moments, bool(tf.reduce_all(numbers))])
    return found


def going_on_alone(before_the_end: Callable[[], None]) -> list[Any]:
    """Rank 1 is killed, in an uneven step; the other one begins it again without it."""
    weights = tf.Variable([1.0, 2.0])

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        weights.assign_add(hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="elastic"))

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < 4:
            if state.step == 3 and hvd.rank() == 1:
                before_the_end()
                os.kill(os.getpid(), 9)
            step()
            state.step += 1
            if state.step % 2 == 0:
                state.commit()

    train(hvd.elastic.TensorFlowState([weights], step=0))
    return [hvd.size(), *weights.numpy().tolist()]


def kept_by_keras() -> list[Any]:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.build((None, 2))
    model.compile(optimizer=tf.keras.optimizers.Adam(0.1), loss="mse", jit_compile=False)
    state = hvd_keras.elastic.KerasState(model, batch=0, epoch=1)
    epochs = []
    model.fit(
        np.ones((8, 2)),
        np.ones((8, 1)),
        batch_size=2,
        epochs=2,
        verbose=0,
        callbacks=[
            tf.keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: epochs.append(state.epoch)),
            hvd_keras.elastic.UpdateBatchStateCallback(state),
            hvd_keras.elastic.UpdateEpochStateCallback(state),
            hvd_keras.elastic.CommitStateCallback(state, batches_per_commit=3),
        ],
    )
    kept = [each.numpy() for each in model.variables]
    for variable in model.variables:
        variable.assign(variable + 1.0)
    state.epoch, state.batch = 7, 7
    state.restore()
    same = all(np.array_equal(each, old) for each, old in zip(model.variables, kept, strict=True))
    return [epochs, state.epoch, state.batch, same]


def everything() -> dict[str, Any]:
    """Rank 1 does not live to return it."""
    rank = hvd.rank()
    ours = tf.constant([rank + 1.0, rank + 2.0])
    with tf.GradientTape() as outer:
        outer.watch(ours)
        total = tf.reduce_sum(hvd.allreduce(ours, op=hvd.Sum))
    result = {
        "eager": [each.numpy().tolist() for each in moved(ours)],
        "function": [each.numpy().tolist() for each in tf.function(moved)(ours)],
        "reduced": [each.numpy().tolist() for each in reduced(ours)],
        "reduced in a function": [each.numpy().tolist() for each in tf.function(reduced)(ours)],
        "some": of_some_ranks(),
        "refused": all_refused(),
        "gradient": outer.gradient(total, ours).numpy().tolist(),
        "slices": of_slices().numpy().tolist(),
        "adasum": adasum_of_gradients().numpy().tolist(),
        "objects": hvd.allgather_object({"rank": rank}),
        "object": hvd.broadcast_object([rank], 1),
        "tape": trained_by_tape(),
        "keras": trained_by_keras(),
        "best": best_model(),
        "passes": [in_two_passes(average=False), in_two_passes(average=True)],
        "batch_norm": batch_norm(),
        "masked": masked_batch_norm(),
        "local layers": with_local_layers(),
    }
    result["alone"] = going_on_alone(lambda: print(json.dumps((True, result)), flush=True))
    result["kept"] = kept_by_keras()
    return result


def of_keras() -> list[Any]:
    """What there is of Keras 2, too."""
    try:
        in_two_passes(average=False)
    except NotImplementedError as error:
        said = str(error)
    package = tf.keras.Model.__module__.partition(".")[0]
    return [
        package,
        said,
        trained_by_tape(),
        trained_by_keras(),
        batch_norm(),
        kept_by_keras(),
        with_local_layers(),
        best_model(),
        masked_batch_norm(),
    ]


def bits() -> list[str]:
    """The bits of sums that depend on their order, in a job of each pair of settings that BITS
    has: TENSORWIRE_DETERMINISTIC and TENSORWIRE_TUNING."""
    found = []
    mine = np.random.default_rng(hvd.rank()).random(10_000, np.float32)
    for deterministic, tuning in json.loads(os.environ["BITS"]):
        hvd.shutdown()
        os.environ.update(TENSORWIRE_DETERMINISTIC=deterministic, TENSORWIRE_TUNING=tuning)
        hvd.init()
        total = hvd.allreduce(tf.constant(mine), op=hvd.Sum)
        found.append(hashlib.sha256(total.numpy().tobytes()).hexdigest())
    return found


def main(program: str) -> None:
    """Prints what it returns, or why it has failed."""
    hvd.init()
    try:
        outcome = (True, globals()[program]())
    except BaseException:
        outcome = (False, traceback.format_exc())
    finally:
        hvd.shutdown()
    print(json.dumps(outcome))
