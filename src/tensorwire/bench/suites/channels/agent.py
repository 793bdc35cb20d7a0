# SPDX-License-Identifier: Apache-2.0
"""One process of a training: ``python -m tensorwire.bench.suites.channels.agent``.

Arguments: the contender, the transport, the number of this process, how many ranks there are (the
processes behind them serve), the model, how many products of matrices a step has, and the path of
the bench's unix socket. The conversation is that of ``tensorwire.bench.suites.collectives.agent``.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections.abc import Sequence

from tensorwire.bench.harness.control import Control, conversation
from tensorwire.bench.harness.measure import WrongAnswerError
from tensorwire.bench.harness.work import Array
from tensorwire.bench.inventories import load
from tensorwire.bench.suites.channels.compute import Layers
from tensorwire.bench.suites.channels.contender import Channel, Server, Trainer, find
from tensorwire.bench.suites.collectives.agent import TIMEOUT_SECONDS, end_with
from tensorwire.bench.suites.collectives.contender import Meeting


class Driver:
    """Runs the steps that are asked for, and checks the averages of the first."""

    def __init__(self, channel: Channel, meeting: Meeting, layers: Layers) -> None:
        self._channel = channel
        self._meeting = meeting
        self._layers = layers
        self._checked = False

    def open(self) -> None:
        if isinstance(self._channel, Server):
            self._channel.serve(1)
            return
        averages = self._step()
        if self._channel.exchanges and not self._checked:
            expected = (self._meeting.size + 1) / 2  # ranks give 1, 2, ...
            for each in averages:
                if each.size and not (each.min() == each.max() == expected):
                    raise WrongAnswerError(
                        f"the average of a gradient is {each.min()} to {each.max()}, "
                        f"expected {expected}"
                    )
            self._checked = True

    def run(self, steps: int) -> tuple[array[int], float]:
        """Nanoseconds of each step, and CPU seconds of all."""
        used, clock = time.process_time(), time.perf_counter_ns
        durations = array("q")
        if isinstance(self._channel, Server):
            self._channel.serve(steps)
            durations.extend([0] * steps)
        else:
            before = clock()
            for _ in range(steps):
                self._step()
                after = clock()
                durations.append(after - before)
                before = after
        return durations, time.process_time() - used

    def _step(self) -> Sequence[Array]:
        assert isinstance(self._channel, Trainer)
        gradients = self._channel.gradients()
        self._layers.step(gradients, self._meeting.rank + 1.0)
        return self._channel.average(gradients)


def answer(control: Control, driver: Driver) -> None:
    while message := control.receive():
        if "work" in message:
            driver.open()
            control.send({"ready": True})
        else:
            durations, used = driver.run(message["calls"])
            control.send({"nanoseconds": durations.tolist(), "cpu_seconds": used, "ways": []})


def main(arguments: list[str]) -> None:
    name, transport, number, ranks, model, products, path = arguments
    with conversation(path) as control:
        end_with(control)
        folder = os.path.join(os.path.dirname(path), "meeting")
        meeting = Meeting(int(number), int(ranks), folder, TIMEOUT_SECONDS)
        elements = [tensor.elements for tensor in load(model)]
        with find(name).join(meeting, transport, elements) as channel:
            control.send({"role": f"{meeting.rank:06}", "path": channel.path, "note": channel.note})
            answer(control, Driver(channel, meeting, Layers(int(products))))


if __name__ == "__main__":
    main(sys.argv[1:])
