# SPDX-License-Identifier: Apache-2.0
"""One worker of the case ``mirrored``: ``python -m tensorwire.bench.suites.tensorflow.worker``.

Its arguments are those of ``tensorwire.bench.suites.tensorflow.agent``, and the conversation is
that of ``tensorwire.bench.suites.collectives.agent``. Asked for its ``counts``, it also tells the
checksum of its variables.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Sequence
from typing import Any

from tensorwire.bench.harness.control import Control, conversation
from tensorwire.bench.harness.measure import timed_calls
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.agent import answered, end_with
from tensorwire.bench.suites.tensorflow.contender import Contender, find
from tensorwire.bench.suites.tensorflow.mirrored import Training, join


class Driver:
    """Runs steps of a training that stays from visit to visit. workers: whose gradients are added
    up, of which this one is at ``place``."""

    def __init__(self, tf: Any, strategy: Any, place: int, workers: Sequence[int]) -> None:
        self._tf = tf
        self._strategy = strategy
        self._place = place
        self._workers = workers
        self._work: Work | None = None
        self._training: Training | None = None

    def open(self, work: Work) -> None:
        if work != self._work or self._training is None:
            self._training = Training(self._tf, self._strategy, self._place, work.size)
            self._work = work
        self._training.check(self._workers)

    def run(self, calls: int) -> tuple[array[int], float]:
        assert self._training is not None
        return timed_calls(self._training.step, calls)

    def checksum(self) -> int | None:
        return None if self._training is None else self._training.checksum()

    def ways(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        pass


def answer(control: Control, contender: Contender, driver: Driver) -> None:
    while message := control.receive():
        if "counts" in message:
            control.send({"counts": dict(contender.counts()), "checksum": driver.checksum()})
        else:
            control.send(answered(driver, message))


def main(arguments: list[str]) -> None:
    index, name, transport, addresses, path = arguments
    with conversation(path) as control:
        end_with(control)
        contender = find(name)
        protocol = contender.protocol(transport)
        import tensorflow as tf

        place, hosts = int(index), addresses.split(",")
        workers = [place] if contender.alone else [*range(len(hosts))]
        strategy = join(tf, protocol, [hosts[each] for each in workers], workers.index(place))
        control.send({"role": f"{place:06}", "path": transport, "note": ""})
        answer(control, contender, Driver(tf, strategy, place, workers))
    os._exit(0)  # servers of TensorFlow cannot be shut down


if __name__ == "__main__":
    main(sys.argv[1:])
