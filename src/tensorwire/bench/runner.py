# SPDX-License-Identifier: Apache-2.0
"""A whole run: contenders side by side, visited in turn, round after round."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from tensorwire.bench import course
from tensorwire.bench.control import AgentError
from tensorwire.bench.course import Course, Forecast, Progress, tour
from tensorwire.bench.measure import Visit
from tensorwire.bench.pair import Pair, start
from tensorwire.bench.peers import peer
from tensorwire.bench.work import Work
from tensorwire.observe.host import same_host_congestion_control

BASELINE = "grpcio"
OWN = "tensorwire"
START_SECONDS = 1.0
"""About: of both processes of a contender."""
VISIT_OVERHEAD = 0.05
"""Seconds, about: of a visit, outside of its calls."""


@dataclass(frozen=True)
class Contender:
    """A library on one transport; ``auto`` where the library chooses."""

    name: str
    transport: str


@dataclass
class Results(Course):
    """Visits by contender and work, and why some of them are missing."""

    visits: dict[tuple[Contender, Work], list[Visit]] = field(
        default_factory=lambda: defaultdict(list)
    )
    comments: dict[Contender, str] = field(default_factory=dict)


def contenders(transports: Sequence[str], peers: Iterable[str]) -> list[Contender]:
    """The baseline, Tensorwire on each of ``transports``, then the peers on all of theirs.

    Raises ValueError for a peer that does not exist.
    """
    found = [Contender(BASELINE, "grpc"), *(Contender(OWN, t) for t in transports)]
    for name in peers:
        names = [name]
        if name == "sockets":
            names.append(f"sockets-{same_host_congestion_control()}")
        for each in names:
            found.extend(Contender(each, transport) for transport in peer(each).transports)
    return list(dict.fromkeys(found))


def forecast(
    asked: Sequence[Contender], works: Sequence[Work], rounds: int, seconds: float
) -> Forecast:
    """Of a run; contenders that are not installed have no part in it."""
    total = Forecast()
    for contender in asked:
        if peer(contender.name).viable(contender.transport) is not None:
            continue
        own = duty(contender, works)
        total += Forecast(0, START_SECONDS * len({work.reads for work in own}))
        for work in own:
            total += course.visits(rounds, work.size, seconds, VISIT_OVERHEAD)
    return total


def run(
    asked: Sequence[Contender],
    works: Sequence[Work],
    rounds: int,
    seconds: float,
    progress: Progress = lambda now, done, total: None,
    *,
    may_lack: Collection[str] = (),
) -> Results:
    """Measures every contender on every work that it supports.

    Each round visits each of them once, so that all share whatever else the host does; the order
    moves on by one from round to round. seconds: of one visit, not counting its warm-up. All
    agents run from the beginning to the end; those that are not visited wait without using CPU.
    What reads has agents of its own: to a receiver that has read an arena, it is other memory.
    Ctrl-C ends the run with the figures that there are.

    may_lack: names of contenders that need not be installed.
    """
    results = Results()
    with ExitStack() as stack:
        pairs: dict[tuple[Contender, bool], Pair] = {}
        for contender in asked:
            progress(f"starting {contender.name} {contender.transport}", 0, 0)
            for reads in dict.fromkeys(work.reads for work in duty(contender, works)):
                _start(stack, pairs, contender, reads, results, may_lack)
        duties = {contender: duty(contender, works) for contender, _ in pairs}
        tour(
            ((c, work) for c, work in _visits(works, rounds, duties) if (c, work.reads) in pairs),
            rounds * sum(map(len, duties.values())),
            lambda turn: _describe(*turn),
            lambda turn: _visit(pairs, *turn, seconds, results),
            results,
            progress,
        )
    return results


def _visits(
    works: Sequence[Work], rounds: int, duties: Mapping[Contender, Sequence[Work]]
) -> Iterator[tuple[Contender, Work]]:
    """In their order: what is compared comes together."""
    for size in dict.fromkeys(work.size for work in works):
        groups = dict.fromkeys(work.comparable for work in works if work.size == size)
        for turn in range(rounds):
            for group in groups:
                for contender in rotated(list(duties), turn):
                    for work in duties[contender]:
                        if work.comparable == group:
                            yield contender, work


def duty(contender: Contender, works: Sequence[Work]) -> list[Work]:
    """What a contender measures of ``works``: the same in ordinary memory, each once, where its
    library knows no other."""
    library = peer(contender.name)
    own = (
        work if work.origin in library.origins else replace(work, origin="ordinary")
        for work in works
    )
    return [work for work in dict.fromkeys(own) if library.supports(work)]


def rotated(contenders: list[Contender], turn: int) -> list[Contender]:
    shift = turn % max(len(contenders), 1)
    return contenders[shift:] + contenders[:shift]


def _describe(contender: Contender, work: Work) -> str:
    return f"{contender.name} {contender.transport}: {work.case} of {work.size} B"


def _start(
    stack: ExitStack,
    pairs: dict[tuple[Contender, bool], Pair],
    contender: Contender,
    reads: bool,
    results: Results,
    may_lack: Collection[str],
) -> None:
    label = f"{contender.name} over {contender.transport}"
    try:
        library = peer(contender.name)
        reason = library.viable(contender.transport)
        if reason is not None:
            results.notes.append(f"{label}: left out: {reason}")
            results.failed |= contender.name.partition("-")[0] not in may_lack
            return
        pair = stack.enter_context(start(contender.name, contender.transport))
    except (AgentError, ImportError) as error:
        results.notes.append(f"{label}: {error}")
        results.failed = True
        return
    if contender.transport not in ("auto", pair.path):
        results.notes.append(f"{label}: took {pair.path} instead, so there are no figures")
        results.failed = True
        return
    pairs[contender, reads] = pair
    results.comments[contender] = pair.note


def _visit(
    pairs: dict[tuple[Contender, bool], Pair],
    contender: Contender,
    work: Work,
    seconds: float,
    results: Results,
) -> None:
    label = f"{contender.name} over {contender.transport}"
    pair = pairs[contender, work.reads]
    try:
        visit = pair.visit(work, seconds)
    except AgentError as error:
        results.notes.append(f"{_describe(contender, work)}: {error}")
    else:
        if visit.path == pair.path:
            results.visits[contender, work].append(visit)
            return
        results.notes.append(f"{label}: went from {pair.path} to {visit.path} and was stopped")
    results.failed = True
    del pairs[contender, work.reads]
    results.visits.pop((contender, work), None)


def _times_faster(work: Work, visits: list[Visit], base: list[Visit]) -> float:
    """By the time of a call; where several callers compete for the way, by calls in all, since
    the median call may be one that found the way free."""
    if work.callers > 1:
        rates = (statistics.median(v.calls / v.seconds for v in each) for each in (visits, base))
        return next(rates) / next(rates)
    return statistics.median(v.p50_us for v in base) / statistics.median(v.p50_us for v in visits)


def spread(medians: Sequence[float]) -> float:
    """How far the rounds are apart: the largest less the smallest, as a part of the median."""
    middle = statistics.median(medians)
    return (max(medians) - min(medians)) / middle if middle else 0.0


LENT = 64 << 10
"""Bytes from which an array is surely lent; a smaller one may be in the message itself."""


def moves(work: Work, path: str) -> bool:
    """Whether bytes are moved or read. An array of the arena that goes over shared memory and is
    not read is only announced: its time is that of a call, and there is no rate."""
    lent = work.origin == "published" and path == "shm" and work.size >= LENT
    return work.reads or not lent


def rows(results: Results) -> list[dict[str, Any]]:
    """One row for each contender and work, as documented in ``docs/benchmarks.md``."""
    baseline = {
        work.comparable: visits
        for (contender, work), visits in results.visits.items()
        if contender.name == BASELINE
    }
    table = []
    for (contender, work), visits in results.visits.items():
        p50 = statistics.median(visit.p50_us for visit in visits)
        p99 = statistics.median(visit.p99_us for visit in visits)
        moved = moves(work, visits[0].path)
        base = baseline.get(work.comparable) if moved else None
        gigabytes = work.size / 1e9
        table.append(
            {
                "contender": contender.name,
                "transport": visits[0].path,
                "case": work.case,
                "size": work.size,
                "payload": work.payload,
                "origin": work.origin,
                "reads": work.reads,
                "callers": work.callers,
                "p50_us": p50,
                "p50_spread": spread([visit.p50_us for visit in visits]),
                "p99_us": p99,
                "gb_per_s": statistics.median(v.calls * gigabytes / v.seconds for v in visits)
                if moved
                else None,
                "msgs_per_s": statistics.median(v.calls / v.seconds for v in visits)
                if moved
                else None,
                "cpu_s_per_gb": statistics.median(
                    v.cpu_seconds / (v.calls * gigabytes) for v in visits
                )
                if moved and work.size
                else None,
                "ratio_to_grpcio": _times_faster(work, visits, base) if base else None,
                "p99_ratio_to_grpcio": statistics.median(v.p99_us for v in base) / p99
                if base
                else None,
                "calls": sum(visit.calls for visit in visits),
                "note": results.comments[contender],
            }
        )
    return table
