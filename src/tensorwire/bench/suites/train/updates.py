# SPDX-License-Identifier: Apache-2.0
"""How the workers of a cluster agree on the parameters: one class for each ``variable_update``.

Each is told of a model's parameters while the model is built, and then makes the operations of one
training step. TensorFlow cuts the graph where an operation's device changes, and moves the tensors
that cross: that is the communication the benchmark is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorwire.bench.suites.train.models.layers import Tensor
from tensorwire.bench.suites.train.options import HOROVOD, Options
from tensorwire.horovod import tensorflow as hvd

v1 = tf.compat.v1


class Step(NamedTuple):
    """What a worker fetches in each step.

    done: when all that this worker has to do is done; global_step: the steps of all workers
    together by then.
    """

    done: Any
    global_step: Any


class Update:
    """Independent workers: every parameter is the process's own."""

    def __init__(self, options: Options, device: str) -> None:
        """device: where this worker computes; parameters lie on the local parameter device."""
        self._options = options
        self._device = device
        self._parameter_device = device.rpartition("/")[0] + f"/{options.local_parameter_device}:0"
        self._masters: list[Any] = []
        self._values: list[Tensor] = []
        self._statistics: list[Any] = []
        self._moved: list[Any] = []
        self._optimizer = optimizer(options)

    @property
    def chief(self) -> bool:
        return self._options.task_index == 0

    @property
    def parameters(self) -> list[Any]:
        """The trainable variables, in the order of creation."""
        return self._masters

    def parameter(self, name: str, shape: Sequence[int], initializer: Any) -> Tensor:
        master = self._variable(name, shape, initializer)
        self._masters.append(master)
        value = self._value(master)
        self._values.append(value)
        return value

    def statistic(self, name: str, shape: Sequence[int], initializer: Any) -> Statistic:
        variable = self._variable(name, shape, initializer)
        self._statistics.append(variable)
        return Statistic(variable, self._moved)

    def train(self, loss: Tensor) -> Step:
        return self._step(self._apply(self._gradients(loss, 1.0)))

    def forward(self, loss: Tensor) -> Step:
        """A step that computes and changes nothing."""
        return self._step([loss])

    def shared(self) -> list[Any]:
        """The variables that the chief initialises for all."""
        return []

    def local(self) -> list[Any]:
        """The variables that every worker initialises for itself, after ``shared``."""
        return [*self._masters, *self._statistics, self._count(), *self._optimizer.variables()]

    def after_shared(self) -> Any | None:
        """Of the chief: to run when ``shared`` are there; of others: returns when that was run."""
        return None

    def before_first_step(self) -> Any | None:
        """To run when all variables are there."""
        return None

    def _step(self, waits_for: Sequence[Any]) -> Step:
        with tf.control_dependencies([*waits_for, *self._moved]):
            count = self._count().assign_add(self._options.workers, read_value=True)
        return Step(count.op, count)

    def _count(self) -> Any:
        """The global step."""
        with v1.variable_scope("", reuse=v1.AUTO_REUSE), tf.device(self._home(counter=True)):
            return v1.get_variable(
                "global_step", (), tf.int64, v1.initializers.zeros(), trainable=False
            )

    def _home(self, counter: bool = False) -> str:
        """The device of the next variable."""
        return self._parameter_device

    def _variable(self, name: str, shape: Sequence[int], initializer: Any) -> Any:
        with tf.device(self._home()):
            return v1.get_variable(
                name, shape, tf.float32, initializer, use_resource=True, trainable=False
            )

    def _value(self, master: Any) -> Tensor:
        """The parameter as this step computes with it: read once, however often it is used."""
        with tf.device(self._parameter_device):
            return master.read_value()

    def _gradients(self, loss: Tensor, scale: float) -> list[Tensor]:
        """Of ``scale`` times the loss and its weight decay, clipped as asked for."""
        decay = self._options.weight_decay
        if decay:
            loss = loss + decay * tf.add_n([tf.nn.l2_loss(value) for value in self._values])
        gradients = tf.gradients(loss * scale if scale != 1.0 else loss, self._values)
        clip = self._options.gradient_clip
        if clip is None:
            return list(gradients)
        return [tf.clip_by_value(gradient, -clip * scale, clip * scale) for gradient in gradients]

    def _apply(self, gradients: Sequence[Tensor]) -> list[Any]:
        with tf.device(self._home(counter=True)):
            return [self._optimizer.apply_gradients(zip(gradients, self._masters, strict=True))]


class ParameterServer(Update):
    """Parameters lie on the parameter servers; a step reads all of them and sends all gradients.

    With cross_replica_sync, gradients wait on the servers in a queue for each parameter and worker
    until those of all workers are there. The chief's graph then applies them in the order of the
    workers, and lets each worker go on by a token: so a step gives the same bits in every run.
    Without, each worker applies its own and goes on.
    """

    def __init__(self, options: Options, device: str) -> None:
        super().__init__(options, device)
        self._placed = 0

    def train(self, loss: Tensor) -> Step:
        if not self._options.cross_replica_sync:
            return self._step(self._apply(self._gradients(loss, 1.0)))
        queued = self._exchange(self._gradients(loss, 1.0 / self._options.workers))
        with tf.control_dependencies([*queued, *self._moved]):
            global_step = self._next_token(queued)
        return Step(global_step.op, global_step)

    def shared(self) -> list[Any]:
        return super().local()

    def local(self) -> list[Any]:
        return []

    def after_shared(self) -> Any | None:
        others = range(1, self._options.workers)
        queues = {worker: self._queue("ready", worker, tf.int64, ()) for worker in others}
        if self.chief:
            return tf.group([queue.enqueue(tf.constant(0, tf.int64)) for queue in queues.values()])
        return queues[self._options.task_index].dequeue()

    def _home(self, counter: bool = False) -> str:
        if counter:
            return self._server(0)
        self._placed += 1
        return self._server(self._placed - 1)

    def _server(self, index: int) -> str:
        task = index % len(self._options.ps_hosts)
        return f"/job:ps/replica:0/task:{task}/{self._options.local_parameter_device}:0"

    def _value(self, master: Any) -> Tensor:
        with tf.device(master.device):
            return master.read_value()

    def _queue(self, name: str, worker: int, kind: Any, shape: Sequence[int], at: str = "") -> Any:
        """One that all workers know by its name, on a parameter server."""
        with tf.device(at or self._server(0)):
            shared_name = f"{name}_{worker}"
            return v1.FIFOQueue(1, [kind], [shape], shared_name=shared_name, name=shared_name)

    def _exchange(self, gradients: Sequence[Tensor]) -> list[Any]:
        """What sends this worker's gradients and, in the chief's graph, applies those of all."""
        sent = []
        gathered: list[tuple[list[Tensor], Any]] = []
        for number, (gradient, master) in enumerate(zip(gradients, self._masters, strict=True)):
            queues = [
                self._queue(
                    f"gradient_{number:03}", worker, tf.float32, gradient.shape, master.device
                )
                for worker in range(self._options.workers)
            ]
            with tf.device(master.device):
                sent.append(queues[self._options.task_index].enqueue(gradient))
                if self.chief:
                    gathered.append(([queue.dequeue() for queue in queues], master))
        return [*sent, *self._apply_gathered(gathered)] if self.chief else sent

    def _apply_gathered(self, gathered: Sequence[tuple[list[Tensor], Any]]) -> list[Any]:
        """Applies the sums. Plain descent is linear: there each worker's gradient is applied by
        itself, in their order, and no sum needs memory."""
        if self._options.optimizer != "sgd":
            sums = []
            for gradients, master in gathered:
                with tf.device(master.device):
                    sums.append((tf.add_n(gradients), master))
            with tf.device(self._server(0)):
                return [self._optimizer.apply_gradients(sums)]
        applied = []
        for gradients, master in gathered:
            last: list[Any] = list(gradients)
            for gradient in gradients:
                with tf.control_dependencies(last), tf.device(master.device):
                    last = [self._optimizer.apply_gradients([(gradient, master)])]
            applied += last
        return applied

    def _next_token(self, queued: Sequence[Any]) -> Tensor:
        """The global step after this one, once the parameters are those of the next."""
        names = "sync_queues_step_end"
        if not self.chief:
            return self._queue(names, self._options.task_index, tf.int64, ()).dequeue()
        count = self._count().assign_add(self._options.workers, read_value=True)
        others = range(1, self._options.workers)
        tokens = [self._queue(names, worker, tf.int64, ()).enqueue(count) for worker in others]
        with tf.control_dependencies(tokens), tf.device(self._server(0)):
            return tf.identity(count)


class DistributedReplicated(ParameterServer):
    """Every worker computes on its own copies; after each step it replaces them by the parameters
    on the servers, to which it had sent its gradients."""

    def __init__(self, options: Options, device: str) -> None:
        super().__init__(options, device)
        self._copies: list[Any] = []

    def train(self, loss: Tensor) -> Step:
        step = super().train(loss)
        with tf.control_dependencies([step.done]):
            renewed = self._renew()
        return Step(tf.group(renewed), step.global_step)

    def local(self) -> list[Any]:
        return self._copies

    def before_first_step(self) -> Any | None:
        return tf.group(self._renew())

    def _renew(self) -> list[Any]:
        pairs = zip(self._copies, self._masters, strict=True)
        return [
            copy.assign(super(DistributedReplicated, self)._value(master)) for copy, master in pairs
        ]

    def _value(self, master: Any) -> Tensor:
        with tf.device(self._parameter_device):
            copy = v1.get_variable(
                f"copies/{master.op.name}",
                master.shape,
                tf.float32,
                v1.initializers.zeros(),
                use_resource=True,
                trainable=False,
            )
            self._copies.append(copy)
            return copy.read_value()


class CollectiveAllReduce(Update):
    """Every worker has all parameters; gradients are added up between the workers themselves.

    The same seed gives all of them the same first values, and equal sums keep them equal.
    """

    GROUP = 1

    def train(self, loss: Tensor) -> Step:
        workers = self._options.workers
        gradients = self._gradients(loss, 1.0 / workers)
        return self._step(self._apply(self._added_up(gradients) if workers > 1 else gradients))

    def _added_up(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Those of all workers."""
        with tf.device(self._device):
            return [
                tf.raw_ops.CollectiveReduce(
                    input=gradient,
                    group_size=self._options.workers,
                    group_key=self.GROUP,
                    instance_key=instance,
                    merge_op="Add",
                    final_op="Id",
                    subdiv_offsets=[0],
                    communication_hint="ring",
                )
                for instance, gradient in enumerate(gradients, 1)
            ]


class Horovod(CollectiveAllReduce):
    """The same, with the reduction of ``tensorwire.horovod.tensorflow``: workers are ranks, and no
    TensorFlow servers."""

    def _added_up(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        with tf.device("/cpu:0"):
            return hvd.grouped_allreduce(gradients, op=hvd.Sum, name="gradients")


class Statistic:
    """A moving average; ``moves`` gets the operation that moves it."""

    def __init__(self, variable: Any, moves: list[Any]) -> None:
        self._variable = variable
        self._moves = moves

    def read(self) -> Tensor:
        with tf.device(self._variable.device):
            return self._variable.read_value()

    def move_towards(self, value: Tensor, decay: float) -> None:
        with tf.device(self._variable.device):
            difference = (self._variable.read_value() - value) * (1.0 - decay)
            self._moves.append(self._variable.assign_sub(difference, read_value=False))


def optimizer(options: Options) -> Any:
    from tensorwire.bench.suites.train.models import find

    rate = options.learning_rate
    if rate is None:
        rate = find(options.model).learning_rate
    if options.optimizer == "momentum":
        return v1.train.MomentumOptimizer(rate, options.momentum, use_locking=True)
    if options.optimizer == "rmsprop":
        return v1.train.RMSPropOptimizer(
            rate, decay=0.9, momentum=options.momentum, epsilon=1.0, use_locking=True
        )
    return v1.train.GradientDescentOptimizer(rate, use_locking=True)


KINDS = {
    "parameter_server": ParameterServer,
    "distributed_replicated": DistributedReplicated,
    "collective_all_reduce": CollectiveAllReduce,
    HOROVOD: Horovod,
    "independent": Update,
}


def choose(options: Options, device: str) -> Update:
    """Without a cluster, every update comes to the same: parameters of one's own."""
    kind = KINDS[options.variable_update] if options.job_name else Update
    return kind(options, device)
