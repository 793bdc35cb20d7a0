# SPDX-License-Identifier: Apache-2.0
"""A contender under measurement: two tasks of a cluster, each in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tensorwire import launch
from tensorwire.bench.harness.control import Control
from tensorwire.bench.harness.measure import Visit
from tensorwire.bench.harness.processes import START_SECONDS, VISIT_FACTOR, expect, started
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.tensorflow.cases import JOB, STEP_MILLISECONDS
from tensorwire.bench.suites.tensorflow.contender import Counts, find

VISIT_SECONDS = START_SECONDS + STEP_MILLISECONDS / 1e3
"""Of a visit, beside what was asked for: making a session, filling variables, the last step."""


class Cluster:
    """Two tasks. Raises AgentError when one of them fails, or a way was taken that is not the
    cluster's ``path``."""

    note = ""

    def __init__(self, entry: Entry, controls: list[Control], pids: list[int]) -> None:
        self.path = entry.transport
        self._contender = find(entry.contender)
        self._driver, self._holder = controls
        self._pids = pids

    def visit(self, work: Work, seconds: float) -> Visit:
        before = self._counts()
        self._driver.send({"work": work.to_json(), "seconds": seconds, "pids": self._pids})
        limit = VISIT_SECONDS + seconds * VISIT_FACTOR
        visit = Visit(**expect(self._driver, limit, self._holder))
        counts = grown(before, self._counts())
        way = self._contender.taken(work, self.path, visit.calls, counts)
        return replace(visit, path=way.transport, in_place=way.in_place)

    def _counts(self) -> list[Counts]:
        found: list[Counts] = []
        ends = (self._driver, self._holder)
        for control, other in (ends, ends[::-1]):
            control.send({"counts": True})
            found.append(expect(control, START_SECONDS, other)["counts"])
        return found


def grown(before: Sequence[Counts], after: Sequence[Counts]) -> dict[str, int]:
    """How much each counter of all processes together has grown."""
    total: dict[str, int] = {}
    for old, new in zip(before, after, strict=True):
        for name, value in new.items():
            total[name] = total.get(name, 0) + value - old.get(name, 0)
    return total


@contextmanager
def start(entry: Entry) -> Iterator[Cluster]:
    """Starts both tasks, and ends them whatever state they are in."""
    hosts = ",".join(launch.cluster(f"{JOB}=2").hosts(JOB))

    def commands(path: str) -> list[list[str]]:
        command = [sys.executable, "-m", "tensorwire.bench.suites.tensorflow.agent"]
        return [
            [*command, str(task), entry.contender, entry.transport, hosts, path]
            for task in range(2)
        ]

    with started(commands, 2) as hellos:
        controls = [control for control, _ in hellos]
        yield Cluster(entry, controls, [hello["pid"] for _, hello in hellos])
