# SPDX-License-Identifier: Apache-2.0
"""The first call of processes: each visit starts some, and ends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final, Protocol

from tensorwire.bench.harness.measure import Visit
from tensorwire.bench.harness.report import figure
from tensorwire.bench.harness.rows import Row
from tensorwire.bench.harness.work import Work
from tensorwire.terminal import Column

FIRST: Final = "first"
"""The name of the case, in each suite that has it."""


class Starter(Protocol):
    """Processes that are connected, and have moved nothing yet."""

    path: str
    note: str

    def first(self, work: Work) -> Visit:
        """One call, with no other ahead of it. AgentError."""
        ...


class Fresh:
    """A session of the case ``FIRST``. case: of what these processes do first."""

    def __init__(self, start: Callable[[], AbstractContextManager[Starter]], case: str) -> None:
        self._start = start
        self._case = case
        with start() as processes:
            self.path = processes.path
            self.note = processes.note

    def visit(self, work: Work, seconds: float) -> Visit:
        with self._start() as processes:
            return processes.first(replace(work, case=self._case))


def of_steady(rows: Sequence[Row], case: str) -> list[Column]:
    """How many times as long the first call takes as one of ``case`` in processes that have made
    others, where there are both."""
    if not any(row.case == FIRST for row in rows):
        return []

    def key(row: Row) -> Mapping[str, object]:
        named = "contender", "transport", "size", "payload", "origin", "reads"
        return {name: getattr(row, name) for name in named}

    def ratio(row: Row) -> float | None:
        steady = [each.p50_us for each in rows if each.case == case and key(each) == key(row)]
        if row.case != FIRST or not row.p50_us or not steady or not steady[0]:
            return None
        return row.p50_us / steady[0]

    return [figure("of steady", ratio)]
