# SPDX-License-Identifier: Apache-2.0
"""One task of a cluster: ``python -m tensorwire.bench.suites.tensorflow.agent``.

Arguments: the task's index, the contender, its transport, the addresses of all tasks, separated by
commas, and the path of the bench's unix socket. The agent serves, does what the bench tells it
there, and ends when the bench closes it.
"""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import AbstractContextManager
from typing import Any

from tensorwire.bench.harness import measure
from tensorwire.bench.harness.control import Control, conversation
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.tensorflow.cases import JOB, Check, Step, opened
from tensorwire.bench.suites.tensorflow.contender import Contender, find


class Driver:
    """Runs what is asked for through the server at ``target``. The newest work stays open, because
    the same one comes again in the next round."""

    def __init__(self, tf: Any, target: str) -> None:
        self._tf = tf
        self._target = target
        self._keys = itertools.count(1)
        self._work: Work | None = None
        self._session: AbstractContextManager[tuple[Step, Check]] | None = None
        self._plan: tuple[Step, Check] | None = None

    def visit(self, work: Work, seconds: float, pids: list[int]) -> measure.Visit:
        if work != self._work or self._plan is None:
            self.close()
            self._session = opened(self._tf, self._target, work, next(self._keys))
            self._plan = self._session.__enter__()
            self._work = work
        step, check = self._plan
        # Which way tensors went is asked of both processes, by the bench.
        return measure.visit_calls([step], check, seconds, pids, path=lambda: "")

    def close(self) -> None:
        session, self._session, self._plan, self._work = self._session, None, None, None
        if session is not None:
            session.__exit__(None, None, None)


def answer(control: Control, contender: Contender, driver: Driver) -> None:
    while message := control.receive():
        if "work" in message:
            work = Work(**message["work"])
            found = driver.visit(work, message["seconds"], message["pids"])
            control.send(found.to_json())
        else:
            control.send({"counts": dict(contender.counts())})


def main(arguments: list[str]) -> None:
    index, name, transport, addresses, path = arguments
    with conversation(path) as control:
        contender = find(name)
        protocol = contender.protocol(transport)
        import tensorflow as tf

        tf.compat.v1.disable_eager_execution()
        config = tf.compat.v1.ConfigProto()
        config.experimental.collective_group_leader = f"/job:{JOB}/replica:0/task:0"
        server = tf.distribute.Server(
            {JOB: addresses.split(",")},
            job_name=JOB,
            task_index=int(index),
            protocol=protocol,
            config=config,
        )
        control.send({"role": f"{JOB} {index}", "pid": os.getpid()})
        answer(control, contender, Driver(tf, server.target))
    os._exit(0)  # servers of TensorFlow cannot be shut down


if __name__ == "__main__":
    main(sys.argv[1:])
