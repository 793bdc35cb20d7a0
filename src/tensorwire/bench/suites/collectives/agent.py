# SPDX-License-Identifier: Apache-2.0
"""One rank in a process of its own: ``python -m tensorwire.bench.suites.collectives.agent``.

Arguments: the contender, the rank, how many there are, the type of elements, the device on which
they are, and the path of the bench's unix socket. The agent does what the bench tells it there,
asleep in between, and ends when the bench closes it, also in the middle of an operation for which
other ranks do not come.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from tensorwire.bench.harness.control import Control, conversation
from tensorwire.bench.harness.measure import timed_calls
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.contender import Call, Meeting, Rank, find
from tensorwire.bench.suites.collectives.operations import OPERATIONS, arrays, check, dtype_of

TIMEOUT_SECONDS: Final = 60.0
"""Of joining and of an operation, for libraries that take one."""
LEAVE_SECONDS: Final = 2.0
"""What the agent has to leave its group when the bench has closed; then it just ends."""


class Driven(Protocol):
    """What runs between ``open`` and ``close`` in a rank."""

    def open(self, work: Work) -> None: ...

    def run(self, calls: int) -> tuple[array[int], float]:
        """Nanoseconds of each call, and CPU seconds of all."""
        ...

    def ways(self) -> Sequence[str]:
        """Those that calls have gone since ``open``."""
        ...

    def close(self) -> None: ...


class Driver:
    """Runs what is asked for, on arrays that are there from ``open`` to ``close``."""

    def __init__(self, rank: Rank, meeting: Meeting, dtype: str) -> None:
        self._rank = rank
        self._meeting = meeting
        self._dtype = dtype
        self._checked: set[Work] = set()
        self._call: Call | None = None
        self._rooted = False
        self._case = ""
        self._before: Mapping[str, int] = {}

    def open(self, work: Work) -> None:
        """Checks the results, too, when this is the work's first visit."""
        number, size = self._meeting.rank, self._meeting.size
        dtype = dtype_of(work, self._dtype)
        found = arrays(work.case, work.size, number, size, dtype)
        self._call = self._rank.call(work.case, found.given, found.taken)
        self._rooted = OPERATIONS[work.case].rooted
        if self._rank.exchanges and work not in self._checked:
            self._call()
            self._rank.fetch()
            check(work.case, found, number, size)
            self._checked.add(work)
        self._case, self._before = work.case, dict(self._rank.ways(work.case))
        found.given.fill(0)  # zeros stay what they are, however often they are added up
        self._call = self._rank.call(work.case, found.given, found.taken)
        self._rank.barrier()

    def run(self, calls: int) -> tuple[array[int], float]:
        """Nanoseconds of each call, and CPU seconds of all. Calls with a root are a barrier apart,
        which is not in their times: otherwise the root would be calls ahead of the others."""
        assert self._call is not None
        call, barrier, clock = self._call, self._rank.barrier, time.perf_counter_ns
        barrier()
        if not self._rooted:
            return timed_calls(call, calls)
        durations = array("q")
        keep = durations.append
        used = time.process_time()
        for _ in range(calls):
            before = clock()
            call()
            keep(clock() - before)
            barrier()
        return durations, time.process_time() - used

    def ways(self) -> list[str]:
        """Those that calls have gone since ``open``."""
        now = self._rank.ways(self._case)
        return [way for way, count in now.items() if count > self._before.get(way, 0)]

    def close(self) -> None:
        self._call = None


def answer(control: Control, driver: Driven) -> None:
    while message := control.receive():
        control.send(answered(driver, message))


def answered(driver: Driven, message: Mapping[str, Any]) -> dict[str, Any]:
    """Does what the message says; the answer to it."""
    if "work" in message:
        driver.open(Work(**message["work"]))
        return {"ready": True}
    durations, used = driver.run(message["calls"])
    if message["last"]:
        driver.close()
    figures = {"nanoseconds": durations.tolist(), "cpu_seconds": used}
    return {**figures, "ways": [*driver.ways()]}


def end_with(control: Control) -> None:
    """Ends this process a while after the other end has closed, whatever its threads wait for."""

    def watch() -> None:
        gone = select.poll()
        gone.register(control.fileno(), select.POLLRDHUP)
        gone.poll()
        time.sleep(LEAVE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="end with the bench", daemon=True).start()


def main(arguments: list[str]) -> None:
    name, number, size, dtype, device, path = arguments
    with conversation(path) as control:
        end_with(control)
        folder = os.path.join(os.path.dirname(path), "meeting")
        meeting = Meeting(int(number), int(size), folder, TIMEOUT_SECONDS, device)
        with find(name).join(meeting) as rank:
            control.send({"role": f"{meeting.rank:06}", "path": rank.path, "note": rank.note})
            answer(control, Driver(rank, meeting, dtype))


if __name__ == "__main__":
    main(sys.argv[1:])
