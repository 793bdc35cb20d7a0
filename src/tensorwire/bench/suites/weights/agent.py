# SPDX-License-Identifier: Apache-2.0
"""One rank in a process of its own: ``python -m tensorwire.bench.suites.weights.agent``.

Arguments: the contender, the rank, how many there are, and the path of the bench's unix socket. The
agent does what the bench tells it there, and ends when the bench closes it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from array import array

import numpy as np

from tensorwire.bench.harness.control import Control, conversation
from tensorwire.bench.harness.measure import WrongAnswerError
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.agent import TIMEOUT_SECONDS, end_with
from tensorwire.bench.suites.collectives.contender import Meeting
from tensorwire.bench.suites.weights.contender import (
    Params,
    Rank,
    Weights,
    find,
)
from tensorwire.bench.suites.weights.shards import Holding, held, values


class Driver:
    """Moves versions, on parameters that are there from ``open`` to ``close``."""

    def __init__(self, rank: Rank, meeting: Meeting, trainers: int) -> None:
        self._rank = rank
        self._trains = meeting.rank < trainers
        self._ranks = meeting.rank, meeting.size, trainers
        self._holding: Holding = {}
        self._params: Params = {}
        self._weights: Weights | None = None
        self._version = 0

    def open(self, work: Work, *, first: bool) -> None:
        """Checks two versions, too, unless the first one is to be timed."""
        self._holding = held(work, *self._ranks)
        # Written, as the parameters of programs are, with what no version has.
        self._params = {
            name: np.full(box.shape, 255, np.uint8) for name, box in self._holding.items()
        }
        self._version = 0
        self._weights = self._rank.open(work, self._params)
        self._rank.barrier()
        for _ in range(0 if first else 2):
            self._move()
            self._check()
        self._rank.barrier()

    def run(self, calls: int) -> tuple[array[int], float]:
        """Nanoseconds of each version, and CPU seconds of all that was timed."""
        durations = array("q")
        used = 0.0
        for _ in range(calls):
            nanoseconds, seconds = self._move()
            durations.append(nanoseconds)
            used += seconds
        if self._version == calls:
            self._check()
        return durations, used

    def _move(self) -> tuple[int, float]:
        assert self._weights is not None
        self._version += 1
        if self._trains:
            for name, param in self._params.items():
                np.copyto(param, values(self._holding[name], self._version))
        self._weights.prepare(self._version)
        self._rank.barrier()
        used, before = time.process_time(), time.perf_counter_ns()
        self._weights.move(self._version)
        found = time.perf_counter_ns() - before
        self._rank.barrier()  # until then a trainer may have to serve the others
        return found, time.process_time() - used

    def _check(self) -> None:
        assert self._weights is not None
        if self._trains or not self._rank.receives:
            return
        found = self._weights.held()
        for name, box in self._holding.items():
            same = found[name].shape == box.shape and found[name] == values(box, self._version)
            if not np.all(same):
                raise WrongAnswerError(f"{name} is not of version {self._version}")

    def close(self) -> None:
        if self._weights is not None:
            self._weights.close()
        self._weights, self._params = None, {}
        _give_back()


def _give_back() -> None:
    """Idle memory of malloc, where it has such a call: the processes of all contenders live side by
    side, and what one of them has moved is gigabytes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def answer(control: Control, driver: Driver) -> None:
    while message := control.receive():
        if "work" in message:
            driver.open(Work(**message["work"]), first=message.get("first", False))
            control.send({"ready": True})
        else:
            durations, used = driver.run(message["calls"])
            if message["last"]:
                driver.close()
            control.send({"nanoseconds": durations.tolist(), "cpu_seconds": used, "ways": []})


def main(arguments: list[str]) -> None:
    name, number, size, path = arguments
    with conversation(path) as control:
        end_with(control)
        folder = os.path.join(os.path.dirname(path), "meeting")
        meeting = Meeting(int(number), int(size), folder, TIMEOUT_SECONDS)
        contender = find(name)
        with contender.join(meeting) as rank:
            control.send({"role": f"{meeting.rank:06}", "path": rank.path, "note": rank.note})
            answer(control, Driver(rank, meeting, contender.trainers))


if __name__ == "__main__":
    main(sys.argv[1:])
