# SPDX-License-Identifier: Apache-2.0
"""A suite, and its whole run: contenders side by side, visited in turn, round after round."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from tensorwire.bench.harness import environment, schedule
from tensorwire.bench.harness.contenders import Contender
from tensorwire.bench.harness.control import AgentError, LostError
from tensorwire.bench.harness.fresh import FIRST
from tensorwire.bench.harness.measure import WARM_UP_SHARE, Visit
from tensorwire.bench.harness.report import Layout
from tensorwire.bench.harness.rows import Figure, Report, Row, Visits, rounds, rows
from tensorwire.bench.harness.schedule import (
    Course,
    Entry,
    Forecast,
    Progress,
    rotated,
    silent,
    tour,
)
from tensorwire.bench.harness.work import Work
from tensorwire.progress import say


class SuiteError(Exception):
    """The suite cannot run here at all; its text says why, and what to do."""


class Session(Protocol):
    """The processes of one entry, ready for visits.

    path: the transport that they took; note: what a reader of the figures has to know.
    """

    path: str
    note: str

    def visit(self, work: Work, seconds: float) -> Visit:
        """AgentError when it fails."""
        ...


@dataclass(frozen=True)
class _Running:
    """ends: its processes, by ``close``."""

    session: Session
    ends: ExitStack


Sessions = dict[tuple[Entry, Hashable], _Running]


@dataclass
class Results(Course):
    """Visits by entry and work, and why some of them are missing."""

    visits: Visits = field(default_factory=dict)
    comments: dict[Entry, str] = field(default_factory=dict)


@dataclass
class Suite(abc.ABC):
    """What there is to measure.

    rounds: of which each visits every entry once for each work. seconds: of one visit, not counting
    its warm-up. settings: the options in force, for the report. may_lack: names of contenders that
    need not be installed.
    """

    name: ClassVar[str]
    baseline: ClassVar[Entry]
    layout: ClassVar[Layout]
    start_seconds: ClassVar[float]
    """About: of the processes of an entry."""
    visit_overhead: ClassVar[float]
    """Seconds, about: of a visit, outside of its calls."""
    figure: ClassVar[Figure] = "p50_us"
    """By which rows are compared where there is one caller."""

    entries: Sequence[Entry]
    works: Sequence[Work]
    rounds: int
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    may_lack: Collection[str] = ()

    def __post_init__(self) -> None:
        """ValueError for a contender that is not to be had."""
        for entry in self.entries:
            self.contender(entry.contender)

    @abc.abstractmethod
    def contender(self, name: str) -> Contender:
        """Raises ValueError for a name that no installed package has."""

    @abc.abstractmethod
    def start(self, entry: Entry) -> AbstractContextManager[Session]:
        """Starts the processes, and ends them whatever state they are in. AgentError."""

    def start_in(self, entry: Entry, room: Hashable) -> AbstractContextManager[Session]:
        """The same for the works of one ``room``."""
        return self.start(entry)

    def _why_not(self, entry: Entry) -> str | None:
        return self.contender(entry.contender).viable(entry.transport)

    def prepare(self) -> Mapping[str, str]:
        """Before anything is measured; returns versions for the report. SuiteError."""
        return {}

    def duty(self, entry: Entry) -> list[Work]:
        """What an entry measures of the works."""
        return list(self.works)

    def room(self, work: Work) -> Hashable:
        """Works with another one have processes of their own."""
        return None

    def blocks(self) -> list[list[Hashable]]:
        """The works by ``comparable``: blocks come one after the other, and each round of a block
        visits all of it."""
        return [[key] for key in dict.fromkeys(work.comparable for work in self.works)]

    def moved(self, work: Work) -> int:
        """Bytes of payload that a call moves."""
        return work.size

    def details(self, results: Results, found: Sequence[Row]) -> dict[str, Any]:
        """What only this suite has to report. found: the rows."""
        return {}

    def warm_up_seconds(self) -> float:
        """Of a visit."""
        return self.seconds * WARM_UP_SHARE

    def forecast(self) -> Forecast:
        """Of a run; entries that cannot be measured have no part in it."""
        total = Forecast()
        for entry in self.entries:
            own = self.duty(entry)
            if own and self._why_not(entry) is None:
                total += Forecast(0, self.start_seconds * len({self.room(work) for work in own}))
                for work in own:
                    starts = self.start_seconds if work.case == FIRST else 0.0
                    total += schedule.visits(
                        self.rounds,
                        self.moved(work),
                        self.seconds + self.warm_up_seconds(),
                        self.visit_overhead + starts,
                    )
        return total

    def run(self, progress: Progress = silent) -> tuple[Report, bool]:
        """The report, and whether all that was asked for is in it. SuiteError."""
        contenders = {entry.contender: self.contender(entry.contender) for entry in self.entries}
        packages = itertools.chain(*(each.packages for each in contenders.values()))
        roles = {name: each.role for name, each in contenders.items()}
        described = environment.describe(self.settings, roles, packages)
        described["versions"] |= self.prepare()
        results = self.measure(progress)
        found = rows(
            results.visits, results.comments, self.baseline.contender, self.moved, self.figure
        )
        caveats = environment.caveats({row.transport for row in found})
        environment.ended(described, [*results.notes, *caveats], results.interrupted)
        details = {
            **self.details(results, found),
            "figure": self.figure,
            "rounds": rounds(results.visits),
        }
        report = Report(self.name, self.baseline.contender, described, found, details)
        return report, not results.failed

    def measure(self, progress: Progress = silent) -> Results:
        """Visits every entry for every work that it supports.

        Each round visits each of them once, so that all share whatever else the host does; the
        order moves on by one from round to round. All processes run from the beginning to the end;
        those that are not visited wait without using CPU. What fails, or takes another way than it
        should, is measured no more, and its processes are ended. Ctrl-C, or the loss of a host that
        takes part, ends the run with the figures that there are.
        """
        results = Results()
        try:
            with ExitStack() as stack:
                self._measure(stack, results, progress)
        except LostError as error:
            say(f"tensorwire bench {self.name}: {error}")
            results.note(f"ended early: {error}")
        return results

    def _measure(self, stack: ExitStack, results: Results, progress: Progress) -> None:
        sessions: Sessions = {}
        for entry in self.entries:
            progress(f"starting {entry.contender} {entry.transport}", 0, 0)
            self._start(stack, sessions, entry, results)
        duties = {entry: self.duty(entry) for entry, _ in sessions}
        tour(
            (
                (entry, work)
                for entry, work in self._visits(duties)
                if (entry, self.room(work)) in sessions
            ),
            self.rounds * sum(map(len, duties.values())),
            lambda turn: _describe(*turn),
            lambda turn: self._visit(sessions, *turn, results),
            results,
            progress,
        )

    def _visits(self, duties: Mapping[Entry, Sequence[Work]]) -> Iterator[tuple[Entry, Work]]:
        """In their order: what is compared comes together."""
        for block in self.blocks():
            for turn in range(self.rounds):
                for key in block:
                    for entry in rotated(list(duties), turn):
                        for work in duties[entry]:
                            if work.comparable == key:
                                yield entry, work

    def _start(
        self,
        stack: ExitStack,
        sessions: Sessions,
        entry: Entry,
        results: Results,
    ) -> None:
        rooms = dict.fromkeys(map(self.room, self.duty(entry)))
        if rooms and (reason := self._why_not(entry)) is not None:
            names = {entry.contender, entry.contender.partition("-")[0]}
            missed = names.isdisjoint(self.may_lack)
            results.note(f"{entry}: left out: {reason}", failed=missed)
            return
        for room in rooms:
            ends = stack.enter_context(ExitStack())
            try:
                session = ends.enter_context(self.start_in(entry, room))
            except (AgentError, ImportError) as error:
                results.note(f"{entry}: {error}")
                continue
            if entry.transport in ("auto", session.path):
                sessions[entry, room] = _Running(session, ends)
                results.comments[entry] = session.note
            else:
                results.note(f"{entry}: took {session.path} instead, so there are no figures")
                ends.close()

    def _visit(
        self,
        sessions: Sessions,
        entry: Entry,
        work: Work,
        results: Results,
    ) -> None:
        session = sessions[entry, self.room(work)].session
        try:
            visit = session.visit(work, self.seconds)
        except AgentError as error:
            results.note(f"{_describe(entry, work)}: {error}")
        else:
            if visit.path == session.path:
                results.visits.setdefault((entry, work), []).append(visit)
                return
            results.note(f"{entry}: went from {session.path} to {visit.path} and was stopped")
        results.visits.pop((entry, work), None)
        # Whatever has failed may spin: the others should not be measured beside it.
        sessions.pop((entry, self.room(work))).ends.close()


def _describe(entry: Entry, work: Work) -> str:
    return f"{entry.contender} {entry.transport}: {work.case} of {work.size} B"
