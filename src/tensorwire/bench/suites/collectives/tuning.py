# SPDX-License-Identifier: Apache-2.0
"""``tensorwire tune collectives``: every way of every operation is measured, the fastest are
chosen, and the table of them is kept where groups look for it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import isqrt
from pathlib import Path
from typing import Any, Final

from tensorwire.bench.harness.rows import Report
from tensorwire.bench.harness.schedule import Entry, Progress, silent
from tensorwire.bench.harness.suite import Results
from tensorwire.bench.harness.work import Work, format_size
from tensorwire.bench.suites.collectives.operations import OPERATIONS
from tensorwire.bench.suites.collectives.suite import Collectives, plan
from tensorwire.bench.suites.collectives.ways import FABRICS, FOREVER, UNTUNED, WAYS, moved, rule
from tensorwire.plugins import cache_path

GAIN: Final = 1.05
"""How many times faster another way has to be to be chosen: less is within what runs differ by."""
LARGE: Final = 1 << 20
"""Bytes between two ranks, from which only bandwidth counts."""
FILE: Final = "collectives.table"
"""In this user's cache; the core looks for it there (``core/collective/group.cc``)."""


def default_path() -> Path:
    return cache_path() / FILE


@dataclass(frozen=True)
class Choice:
    """Of an operation between so many ranks: ``size`` in bytes of the larger of a rank's arrays,
    ``nbytes`` what is moved between two of them, and the times of a call, median of the rounds'
    medians, in microseconds."""

    case: str
    transport: str
    ranks: int
    size: int
    nbytes: int
    default_way: str
    default_us: float
    way: str
    us: float


class Tune(Collectives):
    """Groups of one number of ranks."""

    name = "tune"

    @classmethod
    def between(
        cls,
        ranks: int,
        transports: Sequence[str],
        cases: Sequence[str],
        sizes: Sequence[int],
        rounds: int,
        seconds: float,
    ) -> Tune:
        entries = [
            Entry(f"tensorwire-{transport}-{way}", transport)
            for transport in transports
            for way in (UNTUNED, *WAYS[FABRICS[transport]])
        ]
        works = plan(cases, sizes, ranks, "float32")
        settings = {"ranks": ranks, "transports": list(transports), "rounds": rounds}
        return cls(entries, works, rounds, seconds, settings, (), ranks, ("float32",))

    def measure(self, progress: Progress = silent) -> Results:
        """Without a note of the operations that a way does not have."""
        return super(Collectives, self).measure(progress)

    def duty(self, entry: Entry) -> list[Work]:
        """What has one way only needs no measuring."""
        ways = WAYS[FABRICS[entry.transport]].values()
        return [work for work in super().duty(entry) if sum(work.case in of for of in ways) > 1]


def choices(report: Report, ranks: int) -> list[Choice]:
    """The fastest way for each operation and size; the default one unless another is clearly
    faster."""
    details = {
        id(row): detail for row, detail in zip(report.rows, report.details["rows"], strict=True)
    }
    times: dict[tuple[str, str, int], dict[str, tuple[float, str]]] = {}
    for row in report.rows:
        if row.p50_us is not None:
            named = row.contender.rpartition("-")[2]
            took = details[id(row)]["ways"]
            found = times.setdefault((row.case, row.transport, row.size), {})
            found[named] = (row.p50_us, took[0] if len(took) == 1 else "")
    chosen = []
    for (case, transport, size), found in times.items():
        default_us, default_way = found.pop(UNTUNED, (0.0, ""))
        forced = {way: us for way, (us, took) in found.items() if took == way}
        if not default_way or not forced:
            continue
        way = min(forced, key=lambda way: forced[way])
        if forced[way] * GAIN > default_us:
            way = default_way
        us = default_us if way == default_way else forced[way]
        nbytes = moved(Work(case, size), ranks)
        chosen.append(
            Choice(case, transport, ranks, size, nbytes, default_way, default_us, way, us)
        )
    return chosen


def rules(chosen: Iterable[Choice]) -> list[str]:
    """Lines of a table. Where two sizes go different ways, they change in the middle between them,
    as their logarithms go. Operations for which nothing is better than the default have none."""
    runs: dict[tuple[str, str, int], list[Choice]] = {}
    for choice in chosen:
        runs.setdefault((choice.case, choice.transport, choice.ranks), []).append(choice)
    lines = []
    for (case, transport, ranks), run in runs.items():
        run.sort(key=lambda choice: choice.nbytes)
        if all(choice.way == choice.default_way for choice in run):
            continue
        for now, after in zip(run, [*run[1:], None], strict=True):
            if after is None or after.way != now.way:
                upto = isqrt(now.nbytes * after.nbytes) if after else _last(now.nbytes)
                lines.append(rule(case, FABRICS[transport], ranks, upto, now.way))
    return lines


def _last(nbytes: int) -> int:
    """What holds for much data holds for more."""
    return FOREVER if nbytes >= LARGE else nbytes


def table(path: Path, chosen: Sequence[Choice]) -> str:
    """What the file is to hold: the new rules, and the old ones for what was not measured now,
    but for those of fabrics that there are not."""
    measured = {(each.case, FABRICS[each.transport], str(each.ranks)) for each in chosen}
    try:
        old = [line.partition("#")[0].split() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError):
        old = []
    kept = [
        rule(case, fabric, int(ranks), int(nbytes), way)
        for case, fabric, ranks, nbytes, way in (words for words in old if len(words) == 5)
        if ranks.isdigit() and nbytes.isdigit() and fabric in WAYS
        if (case, fabric, ranks) not in measured
    ]
    when = time.strftime("%Y-%m-%d", time.gmtime())
    head = (
        f"# Made by tensorwire tune collectives, {when}: which ways operations of groups go on "
        "this host.\n"
        "# operation  fabric  ranks  bytes (up to)  way\n"
    )
    return head + "".join([*kept, *rules(chosen)])


def as_json(path: Path, chosen: Sequence[Choice], notes: Sequence[str]) -> dict[str, Any]:
    return {
        "table": str(path),
        "choices": [asdict(choice) for choice in chosen],
        "rules": [line.split() for line in rules(chosen)],
        "notes": list(notes),
    }


def print_choices(chosen: Sequence[Choice], notes: Sequence[str]) -> None:
    from tensorwire.bench.harness.report import duration, significant
    from tensorwire.bench.harness.report import table as laid_out
    from tensorwire.terminal import Column, console, fitted, show

    columns = (
        Column("operation", lambda choice: choice.case, text=True),
        Column("ranks", lambda choice: str(choice.ranks)),
        Column("transport", lambda choice: choice.transport, text=True),
        Column("size", lambda choice: format_size(choice.size)),
        Column("default", lambda choice: choice.default_way, text=True),
        Column("time", lambda choice: duration(choice.default_us)),
        Column("tuned", lambda choice: choice.way if _differs(choice) else "", text=True),
        Column("time", lambda choice: duration(choice.us) if _differs(choice) else ""),
        Column("x", lambda choice: significant(choice.default_us / choice.us)),
    )
    groups: dict[tuple[int, str, str], list[Choice]] = {}
    for choice in sorted(chosen, key=lambda each: (each.ranks, each.transport, _order(each))):
        groups.setdefault((choice.ranks, choice.transport, choice.case), []).append(choice)
    out = console()
    made, _ = fitted(
        out, columns, lambda shown: laid_out(shown, [(None, group) for group in groups.values()])
    )
    show(out, made)
    for note in notes:
        show(out, f"- {note}")


def _differs(choice: Choice) -> bool:
    return choice.way != choice.default_way


def _order(choice: Choice) -> tuple[int, int]:
    return list(OPERATIONS).index(choice.case), choice.size
