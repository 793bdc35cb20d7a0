# SPDX-License-Identifier: Apache-2.0
"""The report of a run, which is the same object for every suite, and its rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal

import msgspec

from tensorwire.bench.harness.measure import Visit
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.work import Work

SCHEMA: Final = 1
"""Of the JSON object: another number where a field got another meaning, came or went."""
LENT: Final = 64 << 10
"""Bytes from which an array is surely lent; a smaller one may be in the message itself."""

Visits = dict[tuple[Entry, Work], list[Visit]]
Figure = Literal["p50_us", "calls_per_s"]


@dataclass(frozen=True)
class Row:
    """The figures of one contender for one work: medians over the rounds. What the suite does not
    measure is None. A call is what is timed: a call, a message of a stream, or a step.

    transport: the path that was taken. size: bytes of payload in a call, of a tensor, or of all
        parameters.
    case, payload, origin, reads, callers: as of ``Work``.
    calls: how many were timed, in all rounds.
    p50_us, p99_us: of the time of a call, in microseconds; p50_spread: of the rounds' p50, the
        largest less the smallest, as a part of their median.
    calls_per_s, items_per_s, gb_per_s: calls, items (images) and 10^9 bytes of payload in a second.
    cpu_s_per_call, cpu_s_per_gb: CPU seconds of all processes.
    bytes_per_call, copies_per_call: what the library counted: bytes received, and tensors copied.
    in_place: the share of the bytes that the receiver read in the sender's memory.
    ratio, p99_ratio: how many times faster than the baseline at the same work, in the same rounds,
        by the time of a call; by calls in a second where there are several callers, or that is the
        figure of the suite.
    """

    contender: str
    transport: str
    case: str
    size: int
    payload: str = "array"
    origin: str = "ordinary"
    reads: bool = False
    callers: int = 1
    calls: int = 0
    p50_us: float | None = None
    p50_spread: float | None = None
    p99_us: float | None = None
    calls_per_s: float | None = None
    items_per_s: float | None = None
    gb_per_s: float | None = None
    cpu_s_per_call: float | None = None
    cpu_s_per_gb: float | None = None
    bytes_per_call: float | None = None
    copies_per_call: float | None = None
    in_place: float | None = None
    ratio: float | None = None
    p99_ratio: float | None = None
    note: str = ""

    @property
    def work(self) -> Work:
        return Work(self.case, self.size, self.payload, self.origin, self.reads, self.callers)

    @property
    def announced(self) -> bool:
        """Whether no byte moved, so that its time is not that of others."""
        return announced(self.work, self.transport)


@dataclass(frozen=True)
class Report:
    """A whole run.

    environment: as ``environment.describe`` makes it, with the notes and whether Ctrl-C ended the
    run (``interrupted``). details: what only this suite has.
    """

    suite: str
    baseline: str
    environment: dict[str, Any]
    rows: list[Row]
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def interrupted(self) -> bool:
        return bool(self.environment["interrupted"])

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Report:
        """Raises ValueError for a report of another schema, and for what is none."""
        if found.get("schema") != SCHEMA:
            raise ValueError(
                f"a report of schema {found.get('schema')}, and this version of tensorwire reads "
                f"{SCHEMA}: measure again"
            )
        written = found.get("rows")
        if not isinstance(written, list) or not all(isinstance(row, dict) for row in written):
            raise ValueError("this is no report: there are no rows")
        names = {each.name for each in fields(Row)}
        for row in written:
            if wrong := sorted(names ^ row.keys()):
                raise ValueError(f"fields of a row are missing or unknown: {', '.join(wrong)}")
        try:
            return msgspec.convert(found, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"this is no report: {error}") from error


def spread(medians: Sequence[float]) -> float:
    """How far the rounds are apart: the largest less the smallest, as a part of the median."""
    middle = statistics.median(medians)
    return (max(medians) - min(medians)) / middle if middle else 0.0


def of_all_calls(visits: Sequence[Visit]) -> dict[str, float | None]:
    """Of the calls of all rounds the fastest, the mean and the slowest: ``min_us``, ``mean_us`` and
    ``max_us``, which are None where visits do not tell them."""
    least = [visit.min_us for visit in visits if visit.min_us is not None]
    most = [visit.max_us for visit in visits if visit.max_us is not None]
    means = [(visit.mean_us, visit.calls) for visit in visits if visit.mean_us is not None]
    total = sum(mean * calls for mean, calls in means)
    return {
        "min_us": min(least, default=None),
        "mean_us": total / sum(calls for _, calls in means) if means else None,
        "max_us": max(most, default=None),
    }


def samples(visits: Sequence[Visit]) -> list[list[float]]:
    """Of each round, times of single calls."""
    return [list(visit.samples_us) for visit in visits]


def who(row: Row) -> dict[str, Any]:
    """The names by which the details of a row tell whose they are."""
    names = ("contender", "transport", "case", "size", "payload", "origin", "reads")
    return {name: getattr(row, name) for name in names}


def announced(work: Work, path: str) -> bool:
    """Whether no byte is moved or read. An array of the arena that goes over shared memory and is
    not read is only announced: its time is that of a call, and there is no rate."""
    lent = work.origin == "published" and path == "shm" and work.size >= LENT
    return lent and not work.reads


def rows(
    visits: Visits,
    comments: Mapping[Entry, str],
    baseline: str,
    moved: Callable[[Work], int],
    figure: Figure = "p50_us",
) -> list[Row]:
    """One for each entry and work. baseline: the name of a contender; moved: bytes of a call;
    figure: that one caller's rows are compared by."""
    bases = {
        work.comparable: each
        for (entry, work), each in visits.items()
        if entry.contender == baseline
    }
    return [
        _row(
            *(entry, work, each, bases.get(work.comparable)),
            *(moved(work), comments.get(entry, ""), figure),
        )
        for (entry, work), each in visits.items()
    ]


def rounds(visits: Visits) -> list[dict[str, list[float]]]:
    """Of each row, in the order of ``rows``, what its medians are of: a figure of each round."""
    return [
        {
            "p50_us": [visit.p50_us for visit in each],
            "p99_us": [visit.p99_us for visit in each],
            "calls_per_s": [visit.calls / visit.seconds for visit in each],
            "timed": [visit.timed for visit in each],
        }
        for each in visits.values()
    ]


def _row(
    entry: Entry,
    work: Work,
    visits: Sequence[Visit],
    base: Sequence[Visit] | None,
    nbytes: int,
    note: str,
    figure: Figure,
) -> Row:
    path = visits[0].path
    still = announced(work, path)
    base = None if still else base
    p99 = _median(visits, lambda visit: visit.p99_us)
    rate = _median(visits, lambda visit: visit.calls / visit.seconds)
    cpu = _median(visits, lambda visit: visit.cpu_seconds / visit.calls)
    shares = [visit.in_place for visit in visits if visit.in_place is not None]
    return Row(
        contender=entry.contender,
        transport=path,
        **work.to_json(),
        calls=sum(visit.calls for visit in visits),
        p50_us=_median(visits, lambda visit: visit.p50_us),
        p50_spread=spread([visit.p50_us for visit in visits]),
        p99_us=p99,
        calls_per_s=None if still else rate,
        gb_per_s=None if still else rate * nbytes / 1e9,
        cpu_s_per_call=cpu,
        cpu_s_per_gb=None if still or not nbytes else cpu / nbytes * 1e9,
        in_place=min(shares, default=None),
        ratio=_times_faster(work, visits, base, figure) if base else None,
        p99_ratio=_median(base, lambda visit: visit.p99_us) / p99 if base else None,
        note=note,
    )


def _median(visits: Sequence[Visit], figure: Callable[[Visit], float]) -> float:
    return statistics.median(map(figure, visits))


def _times_faster(
    work: Work, visits: Sequence[Visit], base: Sequence[Visit], figure: Figure
) -> float:
    """By the time of a call; where several callers compete for the way, by calls in all, since
    the median call may be one that found the way free."""
    if work.callers > 1 or figure == "calls_per_s":
        ours, theirs = (_median(each, lambda v: v.calls / v.seconds) for each in (visits, base))
        return ours / theirs
    return _median(base, lambda v: v.p50_us) / _median(visits, lambda v: v.p50_us)
