# SPDX-License-Identifier: Apache-2.0
"""What is measured: steps of a session over two tasks, each with a result that is checked.

Task 0 drives the session and computes, as a worker does; task 1 holds the variables, as a parameter
server does. In an allreduce they are equals. The case ``mirrored`` has no session: ``mirrored.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from tensorwire.bench.harness.measure import WrongAnswerError
from tensorwire.bench.harness.work import Array, Work, payload

JOB = "worker"
WORKER, HOLDER = (f"/job:{JOB}/task:{task}/device:CPU:0" for task in (0, 1))
WORD = 4
"""Tensors are float32."""
FIRST_WORD = 0x3F800000
"""Of the pattern in a variable: the words count up from that of 1.0."""
VARIABLES = 10
"""Of a parameter-server step; together they have its size."""
MANY = 400
"""Of a step that reads many; together they have its size."""
STEP_MILLISECONDS = 60_000
"""A step that takes longer fails."""

MIRRORED: Final = "mirrored"
"""Whose steps are those of a strategy, in processes of their own (``mirrored.py``)."""

Step = Callable[[], None]
Check = Callable[[], None]


def work(case: str, size: int) -> Work:
    """case: ``tensor`` (a variable is read by the other task, which adds it up), ``many`` (so are
    many variables), ``ps-step`` (variables are read by the other task, which sends back gradients
    that are applied to them), ``allreduce`` (both tasks end with the sum of what each of them
    has) or ``mirrored`` (so they do of gradients, which each task applies to its variables).

    size: bytes of the tensor, or of all variables; a multiple of 4.
    """
    return Work(case, size, payload="tensor", reads=True)


def moved(work: Work) -> int:
    """Bytes that both tasks together receive in a step, at least."""
    return work.size if work.case in {"tensor", "many"} else 2 * work.size


def largest(work: Work) -> int:
    """Bytes of the largest tensor that is moved, about."""
    return work.size // {"many": MANY, "ps-step": VARIABLES}.get(work.case, 1)


@contextmanager
def opened(tf: Any, target: str, work: Work, key: int) -> Iterator[tuple[Step, Check]]:
    """A session with ``work`` ready to run, and what checks its result.

    tf: TensorFlow; target: of task 0; key: another one for each session of a cluster.
    The check raises WrongAnswerError.
    """
    tf1 = tf.compat.v1
    config = tf1.ConfigProto(
        operation_timeout_in_ms=STEP_MILLISECONDS,
        graph_options=tf1.GraphOptions(optimizer_options=tf1.OptimizerOptions(opt_level=-1)),
    )
    with tf.Graph().as_default(), tf1.Session(target, config=config) as session:
        plan = CASES[work.case](tf, session, work.size // WORD, key)
        variables = tf1.global_variables()
        session.run([variable.initializer for variable in variables])
        destroy = [tf.raw_ops.DestroyResourceOp(resource=each.handle) for each in variables]
        yield plan
        session.run(destroy)  # else they would stay in the servers


def _variable(tf: Any, name: str, device: str, elements: int) -> Any:
    # One buffer, which the variable takes over: a larger one beside it may fill the arena.
    with tf.device(device):
        words = tf.range(FIRST_WORD, FIRST_WORD + elements)
        return tf.compat.v1.get_variable(
            name, initializer=tf.bitcast(words, tf.float32), use_resource=True
        )


def _pattern(elements: int) -> Array:
    """What ``_variable`` holds at first."""
    return payload(elements * WORD)


def checksum(tf: Any, tensor: Any) -> Any:
    """The sum of all 32-bit words, wrapped around: the same in any order."""
    return tf.reduce_sum(tf.bitcast(tensor, tf.int32))


def _checksum_of(array: Array) -> int:
    return int(array.view(np.int32).sum(dtype=np.int32))


def _compare(found: Any, expected: Any) -> None:
    if found != expected:
        raise WrongAnswerError(f"the checksum came to {found}, expected {expected}")


def _tensor(tf: Any, session: Any, elements: int, key: int) -> tuple[Step, Check]:
    value = _variable(tf, "value", HOLDER, elements).read_value()
    with tf.device(WORKER):
        step, found = tf.reduce_sum(value), checksum(tf, value)
    expected = _checksum_of(_pattern(elements))
    return session.make_callable(step.op), lambda: _compare(int(session.run(found)), expected)


def _lengths(elements: int, variables: int) -> list[int]:
    """Of so many variables, or fewer, which have all elements together."""
    share = max(elements // variables, 1)
    starts = range(0, elements, share)[:variables]
    return [share] * (len(starts) - 1) + [elements - starts[-1]]


def _many(tf: Any, session: Any, elements: int, key: int) -> tuple[Step, Check]:
    sums, found, expected = [], [], []
    for place, length in enumerate(_lengths(elements, MANY)):
        value = _variable(tf, f"variable{place}", HOLDER, length).read_value()
        with tf.device(WORKER):
            sums.append(tf.reduce_sum(value))
            found.append(checksum(tf, value))
        expected.append(_checksum_of(_pattern(length)))
    return (
        session.make_callable(tf.group(*sums)),
        lambda: _compare([int(each) for each in session.run(found)], expected),
    )


def _ps_step(tf: Any, session: Any, elements: int, key: int) -> tuple[Step, Check]:
    """Each step changes the sign of every variable: exact, and each one lost or made with another
    value than the newest is seen in the result."""
    lengths = _lengths(elements, VARIABLES)
    updates, sums = [], []
    for place, length in enumerate(lengths):
        variable = _variable(tf, f"variable{place}", HOLDER, length)
        value = variable.read_value()
        with tf.device(WORKER):
            gradient = value + value
        with tf.device(HOLDER):
            updates.append(
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=1.0, delta=gradient
                )
            )
            sums.append(checksum(tf, variable.read_value()))
    run = session.make_callable(tf.group(*updates))
    positive, negative = (
        [_checksum_of(sign * _pattern(length)) for length in lengths]
        for sign in (np.float32(1), np.float32(-1))
    )
    steps = 0

    def step() -> None:
        nonlocal steps
        run()
        steps += 1

    def check() -> None:
        step()
        _compare([int(each) for each in session.run(sums)], negative if steps % 2 else positive)

    return step, check


def _allreduce(tf: Any, session: Any, elements: int, key: int) -> tuple[Step, Check]:
    reduced = []
    for task, device in enumerate((WORKER, HOLDER)):
        value = _variable(tf, f"value{task}", device, elements)
        with tf.device(device):
            reduced.append(
                tf.raw_ops.CollectiveReduce(
                    input=value.read_value(),
                    group_size=2,
                    group_key=1,
                    instance_key=key,
                    merge_op="Add",
                    final_op="Id",
                    subdiv_offsets=[0],
                    communication_hint="ring",
                )
            )
    with tf.device(HOLDER):
        theirs = checksum(tf, reduced[1])
    with tf.device(WORKER):
        # A tensor from the other task, so that what counts tensors tells by which transport.
        both = tf.stack([checksum(tf, reduced[0]), theirs])
    expected = [_checksum_of(_pattern(elements) * np.float32(2))] * 2
    options = tf.compat.v1.RunOptions()
    options.experimental.collective_graph_key = key
    run = session.make_callable(tf.group(*reduced), accept_options=True)

    def check() -> None:
        _compare(session.run(both, options=options).tolist(), expected)

    return lambda: run(options=options), check


CASES: dict[str, Callable[[Any, Any, int, int], tuple[Step, Check]]] = {
    "tensor": _tensor,
    "many": _many,
    "ps-step": _ps_step,
    "allreduce": _allreduce,
}
