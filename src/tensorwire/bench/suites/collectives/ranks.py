# SPDX-License-Identifier: Apache-2.0
"""A contender under measurement: its ranks, joined and spoken to."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tensorwire.bench.harness.control import AgentError, Control
from tensorwire.bench.harness.measure import MINIMUM_CALLS, WARM_UP_SHARE, Visit, quantile
from tensorwire.bench.harness.processes import (
    START_SECONDS,
    VISIT_FACTOR,
    expect_all,
    started,
    tell,
)
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.contender import find
from tensorwire.bench.suites.collectives.operations import messages

MOST_CALLS: Final = 20_000
"""Of one visit."""


@dataclass(frozen=True)
class Calls:
    """nanoseconds: of each call, on the rank for which it took longest. cpu_seconds: of all
    ranks and calls. ways: that the library took."""

    nanoseconds: Sequence[int]
    cpu_seconds: float
    ways: Sequence[str] = ()

    def within(self, seconds: float) -> int:
        """How many more calls will take about that long."""
        each = max(sum(self.nanoseconds), 1) / len(self.nanoseconds) / 1e9
        return min(max(int(seconds / each), MINIMUM_CALLS), MOST_CALLS)


class Ranks:
    """Those of one group. Raises AgentError when one of them fails.

    path: the transport that data takes; note: what a reader of the figures has to know.
    """

    def __init__(self, controls: Sequence[Control], hellos: Sequence[dict[str, Any]]) -> None:
        paths = {hello["path"] for hello in hellos}
        if len(paths) > 1:
            raise AgentError(f"its ranks take several ways: {', '.join(sorted(paths))}")
        (self.path,) = paths
        self.note: str = hellos[0]["note"]
        self.controls = controls

    def visit(self, work: Work, seconds: float) -> Visit:
        limit = START_SECONDS + seconds * VISIT_FACTOR
        self._ask({"work": work.to_json()}, limit)
        warm = self._run(MINIMUM_CALLS, limit)
        if (more := warm.within(seconds * WARM_UP_SHARE)) > MINIMUM_CALLS:
            warm = self._run(more, limit)
        found = self._run(warm.within(seconds), limit, last=True)
        return self._visit(found, messages(work.case, work.size))

    def first(self, work: Work) -> Visit:
        """The first call of all. Of agents that know ``first``."""
        self._ask({"work": work.to_json(), "first": True}, START_SECONDS)
        return self._visit(self._run(1, START_SECONDS, last=True))

    def _visit(self, found: Calls, parts: int = 1) -> Visit:
        """Of parts of these calls, which all take the same time."""
        ordered = sorted(found.nanoseconds)
        unit = 1e3 * parts
        return Visit(
            quantile(ordered, 0.5) / unit,
            quantile(ordered, 0.99) / unit,
            len(ordered) * parts,
            sum(ordered) / 1e9,
            found.cpu_seconds,
            self.path,
            min_us=ordered[0] / unit,
            mean_us=sum(ordered) / len(ordered) / unit,
            max_us=ordered[-1] / unit,
            ways=found.ways,
            quantiles_of=len(ordered),
        )

    def _run(self, calls: int, limit: float, *, last: bool = False) -> Calls:
        answers = self._ask({"calls": calls, "last": last}, limit)
        each = zip(*(answer["nanoseconds"] for answer in answers), strict=True)
        ways = dict.fromkeys(way for answer in answers for way in answer["ways"])
        used = sum(answer["cpu_seconds"] for answer in answers)
        return Calls([max(call) for call in each], used, list(ways))

    def _ask(self, message: dict[str, Any], limit: float) -> list[dict[str, Any]]:
        tell(self.controls, message)
        return expect_all(self.controls, limit, "the process of rank {}")


@contextmanager
def start(entry: Entry, size: int, dtype: str, device: str) -> Iterator[Ranks]:
    """Starts the ranks of a contender and ends them, whatever state they are in."""

    def commands(path: str) -> list[list[str]]:
        agent = [sys.executable, "-m", "tensorwire.bench.suites.collectives.agent"]
        ranks = [
            [*agent, entry.contender, str(rank), str(size), dtype, device, path]
            for rank in range(size)
        ]
        return find(entry.contender).launch(ranks)

    with started(commands, size) as hellos:
        yield Ranks([control for control, _ in hellos], [hello for _, hello in hellos])
