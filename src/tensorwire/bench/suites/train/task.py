# SPDX-License-Identifier: Apache-2.0
"""One process of a training cluster: a parameter server, a worker, or both in one alone."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorwire.bench.harness.files import write
from tensorwire.bench.suites.train import output, peers
from tensorwire.bench.suites.train.data import inputs
from tensorwire.bench.suites.train.models import find as find_model
from tensorwire.bench.suites.train.models.layers import Network
from tensorwire.bench.suites.train.options import HOROVOD, TENSORWIRE, Options
from tensorwire.bench.suites.train.samples import Samples
from tensorwire.bench.suites.train.updates import Step, Update, choose
from tensorwire.horovod import tensorflow as hvd

v1 = tf.compat.v1

STEP_SECONDS = 600.0
"""How long one run of the graph may take, waiting for others included."""


class TrainingError(RuntimeError):
    """Training ended early; the message says why and what to do."""


def run(options: Options, show: output.Print) -> dict[str, Any] | None:
    """Trains and returns a worker's result; or serves parameters until the process is ended, and
    writes what was sampled to ``options.output``.

    Raises TrainingError, and ValueError when the data cannot be had or the file cannot be written.
    The process should end at once then: TensorFlow may wait half a minute for a lost peer before it
    lets go of a session.
    """
    horovod = options.variable_update == HOROVOD
    server = serve(options) if options.job_name and not horovod else None
    if options.job_name == "ps":
        show(f"Running parameter server {options.task_index}")
        wait_for_end(options)
        return None
    try:
        if horovod:
            join_ranks(options)
        else:
            peers.reach(others(options))
        return Worker(options, server, show).run()
    except hvd.HorovodInternalError as error:
        raise TrainingError(str(error)) from error
    except peers.PeerError as error:
        raise TrainingError(str(error)) from error
    except tf.errors.OpError as error:
        raise TrainingError(explain(error, options)) from error


def join_ranks(options: Options) -> None:
    """Makes this worker a rank of Horovod's; the first one serves the store at its address."""
    host, _, port = options.worker_hosts[0].rpartition(":")
    os.environ.update(
        HOROVOD_RANK=str(options.task_index),
        HOROVOD_SIZE=str(options.workers),
        HOROVOD_GLOO_RENDEZVOUS_ADDR=host,
        HOROVOD_GLOO_RENDEZVOUS_PORT=port,
    )
    hvd.init()


def others(options: Options) -> peers.Peers:
    """The rest of the cluster, as far as it listens: Horovod's ranks look after each other."""
    if options.variable_update == HOROVOD:
        return {}
    return {
        f"{job} {index}": address
        for job, addresses in (("ps", options.ps_hosts), ("worker", options.worker_hosts))
        for index, address in enumerate(addresses)
        if (job, index) != (options.job_name, options.task_index)
    }


def wait_for_end(options: Options) -> None:
    """Returns after SIGTERM, with what was sampled written down."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    samples = Samples(options.server_protocol == TENSORWIRE)
    ended.wait()
    result = {"task_index": options.task_index, "samples": samples.close()}
    if options.output is not None:
        write(options.output, lambda path: path.write_text(json.dumps(result) + "\n"))


def serve(options: Options) -> Any:
    """This process's TensorFlow server."""
    if options.server_protocol == TENSORWIRE:
        import tensorwire.tensorflow

        tensorwire.tensorflow.enable()
    jobs = {"ps": options.ps_hosts, "worker": options.worker_hosts}
    cluster = tf.train.ClusterSpec({job: addresses for job, addresses in jobs.items() if addresses})
    try:
        return v1.train.Server(
            cluster,
            job_name=options.job_name,
            task_index=options.task_index,
            config=session_config(options),
            protocol=options.server_protocol,
        )
    except tf.errors.OpError as error:
        address = jobs[options.job_name][options.task_index]
        raise TrainingError(f"no server at {address}: {error.message}; is it free?") from error


def session_config(options: Options) -> Any:
    on_gpu = device_kind(options) == "gpu"
    threads = options.num_intra_threads
    config = v1.ConfigProto(
        intra_op_parallelism_threads=(1 if on_gpu else 0) if threads is None else threads,
        inter_op_parallelism_threads=options.num_inter_threads,
        allow_soft_placement=False,
        operation_timeout_in_ms=int(STEP_SECONDS * 1000),
    )
    config.gpu_options.allow_growth = True
    if options.variable_update == "collective_all_reduce":
        config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
    elif options.job_name == "worker":
        # A worker talks to parameter servers only: another one that is late or gone is no obstacle.
        config.device_filters.extend(["/job:ps", f"/job:worker/task:{options.task_index}"])
    return config


def device_kind(options: Options) -> str:
    if options.device is not None:
        return options.device
    return "gpu" if tf.config.list_physical_devices("GPU") else "cpu"


_WHERE = ("Graph execution error:", "Detected at node ", "Node: ", " ")
"""How lines of a message begin that only tell where in the program it was."""


def explain(error: Any, options: Options) -> str:
    """What TensorFlow says, and what it means here."""
    lines = [line for line in str(error.message or "").splitlines() if line]
    message = next((line for line in lines if not line.startswith(_WHERE)), "")
    kind = type(error).__name__
    if isinstance(error, tf.errors.UnavailableError):
        return f"a peer is gone ({kind}: {message}); restart the cluster"
    if isinstance(error, tf.errors.DeadlineExceededError):
        return f"no progress for {STEP_SECONDS:.0f} s ({kind}: {message}); is a worker missing?"
    if options.data_dir is not None and isinstance(
        error, (tf.errors.DataLossError, tf.errors.InvalidArgumentError)
    ):
        return f"{options.data_dir}: {kind}: {message}"
    return f"{kind}: {message}"


class Worker:
    """Builds the graph, and runs it step by step."""

    def __init__(self, options: Options, server: Any, show: output.Print) -> None:
        self._options = options
        self._target = "" if server is None else server.target
        self._show = show
        self._parameter_bytes = 0
        prefix = f"/job:worker/replica:0/task:{options.task_index}" if server else ""
        self._device = f"{prefix}/{device_kind(options)}:0"

    def run(self) -> dict[str, Any]:
        options = self._options
        name = f"/job:worker/task:{options.task_index}" if options.job_name else ""
        for line in output.header(options, tf.__version__, f"{name}/{device_kind(options)}:0"):
            self._show(line)
        self._show("Generating model")
        with tf.Graph().as_default():
            v1.set_random_seed(options.tf_random_seed)
            update, loss, step, start = self._build()
            stages = self._stages(update, start)
            session = v1.Session(self._target, config=session_config(options))
            watch = peers.Watch(self._needed(), session.close)
            try:
                for stage in stages:
                    session.run(stage)
                fetched = (loss, step.global_step, step.done)
                result = self._train(session.make_callable(fetched))
            except (tf.errors.OpError, RuntimeError) as error:  # the latter: session closed
                if watch.reason is None:
                    raise
                raise peers.PeerError(watch.reason) from error
            finally:
                watch.close()
            session.close()
            return result

    def _needed(self) -> peers.Peers:
        """Without whom this worker cannot go on."""
        alone = not (self._options.cross_replica_sync and self._options.job_name)
        everyone = others(self._options)
        return {name: at for name, at in everyone.items() if name.startswith("ps") or not alone}

    def _build(self) -> tuple[Update, Any, Step, Any]:
        options = self._options
        with tf.device(self._device):
            data_set = options.data_set()
            shape, classes = options.input_shape(), options.classes()
            seed = options.tf_random_seed + 1000 * options.task_index
            if data_set is None or (data_set.files and options.data_dir is None):
                source = inputs.synthetic(shape, options.batch, classes, seed)
            else:
                source = inputs.real(
                    data_set,
                    options.data_dir,
                    shape,
                    options.batch,
                    seed=seed,
                    worker=options.task_index,
                    workers=options.workers,
                )
            update = choose(options, self._device)
            net = Network(update, training=not options.forward_only, seed=options.tf_random_seed)
            logits = find_model(options.model).logits(net, source.images, classes)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(source.labels, logits)
            loss = tf.reduce_mean(losses)
            step = update.forward(loss) if options.forward_only else update.train(loss)
        self._parameter_bytes = 4 * sum(p.shape.num_elements() for p in update.parameters)
        return update, loss, step, source.start

    def _stages(self, update: Update, start: Any) -> list[Any]:
        """What to run before the first step, in this order."""
        shared = v1.variables_initializer(update.shared()) if update.chief else None
        with tf.device(self._device):
            stages = [
                shared,
                update.after_shared(),
                tf.group([v1.variables_initializer(update.local()), start]),
                update.before_first_step(),
            ]
        return [stage for stage in stages if stage is not None]

    def _train(self, step: Callable[[], tuple[Any, ...]]) -> dict[str, Any]:
        options = self._options
        warmup = options.warmup
        watch = output.Watch(options, self._show)
        samples = Samples(options.server_protocol == TENSORWIRE)
        times, losses, seconds = [time.monotonic()], [], []
        self._show("Running warm up")
        if not warmup:
            self._announce()
        for number in range(1, warmup + options.num_batches + 1):
            loss, global_step, _ = step()
            times.append(time.monotonic())
            losses.append(float(loss))
            watch.saw(int(global_step), times[-1])
            if number == warmup:
                self._announce()
            if number > warmup:
                seconds.append(times[-1] - times[-2])
                done = number - warmup
                if done == 1 or done % options.display_every == 0:
                    line = output.speed_line(done, options.batch, seconds, losses[-1])
                    self._show(line)
        total = watch.images_per_second()
        if total is None:
            total = len(seconds) * options.batch / sum(seconds)
        for line in output.total_lines(total):
            self._show(line)
        return {
            "model": options.model,
            "batch_size": options.batch,
            "task_index": options.task_index,
            "warmup": warmup,
            "parameter_bytes": self._parameter_bytes,
            "images_per_second": total,
            "step_ends": times,
            "losses": output.told(losses),
            "samples": samples.close(),
        }

    def _announce(self) -> None:
        self._show("Done warm up")
        self._show(output.HEADING)
