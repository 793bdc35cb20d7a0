# SPDX-License-Identifier: Apache-2.0
"""A contender under measurement: two tasks of a cluster, each in a process of its own. One drives
the other; in the case ``mirrored`` they are workers of a strategy, and do the same."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from tensorwire import launch
from tensorwire.bench.harness.control import AgentError, Control
from tensorwire.bench.harness.measure import Visit
from tensorwire.bench.harness.processes import (
    START_SECONDS,
    VISIT_FACTOR,
    Hello,
    expect,
    started,
    tell,
)
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.ranks import Ranks
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
        told = {"work": work.to_json(), "seconds": seconds, "pids": self._pids}
        tell([self._driver], told)
        limit = VISIT_SECONDS + seconds * VISIT_FACTOR
        visit = Visit(**expect(self._driver, limit, self._holder))
        counts = grown(before, self._counts())
        way = self._contender.taken(work, self.path, visit.calls, counts)
        return replace(visit, path=way.transport, in_place=way.in_place)

    def _counts(self) -> list[Counts]:
        found: list[Counts] = []
        ends = (self._driver, self._holder)
        for control, other in (ends, ends[::-1]):
            tell([control], {"counts": True})
            found.append(expect(control, START_SECONDS, other)["counts"])
        return found


def grown(before: Sequence[Counts], after: Sequence[Counts]) -> dict[str, int]:
    """How much each counter of all processes together has grown."""
    total: dict[str, int] = {}
    for old, new in zip(before, after, strict=True):
        for name, value in new.items():
            total[name] = total.get(name, 0) + value - old.get(name, 0)
    return total


class Workers(Ranks):
    """Two workers. Raises AgentError as a cluster does, and when their variables differ."""

    def __init__(
        self, entry: Entry, controls: Sequence[Control], hellos: Sequence[dict[str, Any]]
    ) -> None:
        super().__init__(controls, hellos)
        self._contender = find(entry.contender)

    def visit(self, work: Work, seconds: float) -> Visit:
        before, _ = self._told()
        visit = super().visit(work, seconds)
        after, checksums = self._told()
        if len(checksums) > 1 and not self._contender.alone:
            raise AgentError("after the same steps its workers have other variables")
        way = self._contender.taken(work, self.path, visit.calls, grown(before, after))
        return replace(visit, path=way.transport, in_place=way.in_place)

    def _told(self) -> tuple[list[Counts], set[int | None]]:
        """What each has counted, and the checksums of their variables."""
        answers = self._ask({"counts": True}, START_SECONDS)
        return [each["counts"] for each in answers], {each["checksum"] for each in answers}


@contextmanager
def start(entry: Entry) -> Iterator[Cluster]:
    """Starts both tasks, and ends them whatever state they are in."""
    with _started(entry, "agent") as hellos:
        controls = [control for control, _ in hellos]
        yield Cluster(entry, controls, [hello["pid"] for _, hello in hellos])


@contextmanager
def start_workers(entry: Entry) -> Iterator[Workers]:
    """The same, of the case ``mirrored``."""
    with _started(entry, "worker") as hellos:
        yield Workers(entry, [control for control, _ in hellos], [hello for _, hello in hellos])


def _started(entry: Entry, program: str) -> AbstractContextManager[list[Hello]]:
    hosts = ",".join(launch.cluster(f"{JOB}=2").hosts(JOB))

    def commands(path: str) -> list[list[str]]:
        command = [sys.executable, "-m", f"tensorwire.bench.suites.tensorflow.{program}"]
        return [
            [*command, str(task), entry.contender, entry.transport, hosts, path]
            for task in range(2)
        ]

    return started(commands, 2)
