# SPDX-License-Identifier: Apache-2.0
"""A run in tables and sentences, for pages of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tensorwire.bench.harness.report import duration, significant
from tensorwire.bench.harness.work import format_size
from tensorwire.bench.report.comparison import name_of
from tensorwire.bench.report.leads import Lead, Leads
from tensorwire.bench.report.printed import figure_in_words, noise_in_words
from tensorwire.bench.report.runs import Measured, Run
from tensorwire.bench.report.speed import LEAST_ROUNDS, Ratio, figure, ratio
from tensorwire.transports import lends

WITHOUT: Final = "-without-"
"""In the name of a contender, before the one idea that it does without."""
ZERO_COPY: Final = "zero-copy"
"""The idea that needs no such contender: what is published goes without a copy."""
INDEPENDENT: Final = 0.1
"""By how much serializers may take longer, or shorter, than those of another transport."""
READING: Final = "memory"
"""The contender that only reads what receivers of the others read."""


@dataclass(frozen=True)
class Table:
    """texts: how many of its columns, from the first on, are words and no figures. about: what they
    are, where that is not told elsewhere."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    about: str = ""


def summary(run: Run) -> Iterator[str]:
    """What a reader has to know ahead of the figures, in paragraphs."""
    text = f"{len(run.measured)} rows of {run.source}"
    text += f", measured at {run.told.time}." if run.told.time else "."
    text += f" The baseline is {run.report.baseline}."
    if run.told.interrupted:
        text += " The run was interrupted: there are fewer rounds than asked for."
    yield text
    spreads = [each.row.p50_spread for each in run.measured if each.row.p50_spread is not None]
    if spreads:
        yield (
            f"Noise: from round to round the median time of a row differed by {median(spreads):.0%}"
            f" in the median of all rows, by {max(spreads):.0%} at most."
        )
    if not run.has_rounds:
        yield "This run has no rounds: there are no intervals of confidence."
    elif (rounds := run.rounds) < LEAST_ROUNDS:
        yield (
            f"{rounds} round{'s' * (rounds != 1)}: of fewer than {LEAST_ROUNDS} there are no "
            "intervals of confidence."
        )
    loops = [
        f"{when} the run, turns of the host's own loop {name} were apart by {loop.spread:.0%}"
        for when, each in run.told.noise.items()
        for name, loop in (each or {}).items()
    ]
    if run.noise:
        yield run.noise
    if loops:
        text = "; ".join(loops)
        yield f"{text[0].upper()}{text[1:]} (10th to 90th percentile)."


def ahead(found: Leads) -> str:
    """How many others are ahead of us, and how that is counted."""
    text = (
        f"Other libraries are ahead in {len(found.peers)} of {found.compared} comparisons. "
        if found.peers
        else f"No other library is ahead in any of {found.compared} comparisons. "
    )
    return text + (
        "Each of their rows is compared with ours of the same work: over the same transport, or "
        "where we have no such one, over each of ours; from the same kind of memory, of several "
        "the fastest."
    )


def of_leads(title: str, found: Sequence[Lead]) -> Table:
    rows = [
        [
            name_of(each.other),
            name_of(each.ours),
            figure_in_words(each.other, figure(each.other) or "p50_us"),
            figure_in_words(each.ours, figure(each.other) or "p50_us"),
            f"{each.ratio.value:.2f}x",
            noise_in_words(each.ratio),
            {True: "yes", False: "no", None: "not known"}[each.ratio.beyond_noise],
        ]
        for each in found
    ]
    head = ["ahead", "of", "its figure", "ours", "by", "interval or noise", "beyond noise"]
    return Table(title, head, rows, texts=2)


def of_rows(run: Run) -> Table:
    """All rows, without columns of which there is nothing."""
    head = ["contender", "path", "case", "size", "payload", "read", "callers", "p50", "spread"]
    head += [
        "p99",
        "calls/s",
        "images/s",
        "GB/s",
        "bus GB/s",
        "CPU s/GB",
        "CPU s/call",
        "ratio",
        "interval",
    ]
    bases = {
        each.work.comparable: each
        for each in run.measured
        if each.row.contender == run.report.baseline
    }
    rows = [_row(each, bases.get(each.work.comparable)) for each in run.measured]
    filled = [place for place in range(len(head)) if any(row[place] for row in rows)]
    return Table(
        "All rows",
        [head[place] for place in filled],
        [[row[place] for place in filled] for row in rows],
        texts=3,
    )


def _row(measured: Measured, base: Measured | None) -> list[str]:
    row = measured.row

    def number(value: float | None) -> str:
        return "" if value is None else significant(value)

    interval = ""
    if base is not None and row.ratio is not None and base is not measured:
        by = ratio(measured, base, paired=True)
        if by is not None and by.low is not None and by.high is not None:
            interval = f"{significant(by.low)} to {significant(by.high)}"
    return [
        *(row.contender, row.transport, row.case, format_size(row.size), payload_of(measured)),
        *("yes" if row.reads else "no", str(row.callers)),
        "" if row.p50_us is None else duration(row.p50_us),
        "" if row.p50_spread is None else f"{row.p50_spread:.0%}",
        "" if row.p99_us is None else duration(row.p99_us),
        *(number(row.calls_per_s), number(row.items_per_s), number(row.gb_per_s)),
        *(number(measured.bus), number(row.cpu_s_per_gb), number(row.cpu_s_per_call)),
        "" if row.ratio is None else f"{significant(row.ratio)}x",
        interval,
    ]


def payload_of(measured: Measured) -> str:
    row = measured.row
    return row.origin if row.payload in ("array", "tensor", "non-serialized") else row.payload


def of_ideas(run: Run) -> Table | None:
    """How many times faster each of our rows is than without one idea; None where no idea was left
    out."""
    found: dict[tuple[object, ...], dict[str, Measured]] = {}
    for each in run.measured:
        name, _, idea = each.row.contender.partition(WITHOUT)
        if each.role == "own":
            found.setdefault((name, each.row.transport, each.work), {})[idea] = each
    names = dict.fromkeys(idea for rows in found.values() for idea in rows if idea)
    if not names:
        return None
    whole = [rows[""] for rows in found.values() if "" in rows]
    rows = []
    most: dict[str, float] = {}
    for measured, others in ((rows[""], rows) for rows in found.values() if "" in rows):
        without = {idea: others.get(idea) for idea in names}
        without[ZERO_COPY] = _copied(measured, whole)
        gains = {idea: _gain(measured, other) for idea, other in without.items()}
        for idea, by in gains.items():
            if by is not None and by.beyond_noise and by.value > 1:
                most[idea] = max(by.value, most.get(idea, 1))
        what = [measured.row.transport, measured.row.case, format_size(measured.row.size)]
        read = "yes" if measured.row.reads else "no"
        rows.append([*what, payload_of(measured), read, *map(_in_words, gains.values())])
    head = ["path", "case", "size", "payload", "read", *names, ZERO_COPY]
    about = (
        "How many times faster each row is than the same without one idea; zero-copy: than the "
        "same from ordinary memory. Below 1 the idea costs time there."
    )
    if most:
        listed = ", ".join(f"{idea} (up to {by:.2f}x)" for idea, by in most.items())
        about += f" Faster than without by more than rounds differ, in a row at least: {listed}."
    if nothing := [idea for idea in names if idea not in most]:
        about += f" In none: {', '.join(nothing)}."
    return Table("What each idea gives", head, rows, 5, about)


def _copied(measured: Measured, whole: Sequence[Measured]) -> Measured | None:
    """The same of ordinary memory."""
    if measured.row.origin != "published" or measured.announced:
        return None
    if not lends(measured.row.transport):  # it sends any memory as it lies
        return None
    same = (
        each
        for each in whole
        if each.row.origin == "ordinary"
        and each.row.transport == measured.row.transport
        and each.work.comparable == measured.work.comparable
    )
    return next(same, None)


def _gain(measured: Measured, without: Measured | None) -> Ratio | None:
    return None if without is None else ratio(measured, without, paired=True)


def _in_words(by: Ratio | None) -> str:
    return "" if by is None else f"{by.value:.2f}x ({noise_in_words(by)})"


def of_types(run: Run) -> Table | None:
    """How many times faster than the same bytes of the first type each other type is; None where
    not several were measured."""
    first: dict[tuple[str, str, str, int], Measured] = {}
    rows = []
    head = ["contender", "path", "case", "size", "type", "p50", "x", "beyond noise"]
    for each in run.measured if run.report.suite == "collectives" else ():
        row = each.row
        base = first.setdefault((row.contender, row.transport, row.case, row.size), each)
        if base is each or row.p50_us is None:
            continue
        head[6] = f"x {base.row.payload}"
        by = _gain(each, base)
        told = ["", ""] if by is None else [_in_words(by), "yes" if by.beyond_noise else "no"]
        what = [row.contender, row.transport, row.case, format_size(row.size), row.payload]
        rows.append([*what, duration(row.p50_us), *told])
    about = (
        f"How many times faster each is than the same number of bytes of {head[6][2:]}, by the "
        "same contender in the same rounds."
    )
    return Table("What types of elements take", head, rows, 5, about) if rows else None


def of_serializers(run: Run) -> Table | None:
    """What callers spend in serializers for a call, and whether it depends on the transport; None
    where nothing was serialized."""
    found = [each for each in run.measured if each.row.payload == "serialized" and each.serializers]
    if not found:
        return None
    first: dict[tuple[str, int, bool], float] = {}
    verdicts: list[bool] = []
    rows = []
    for row, spent in ((each.row, each.serializers) for each in found):
        payload, verdict = (row.case, row.size, row.reads), ""
        if (base := first.get(payload)) is None:
            base = first[payload] = spent
        else:
            verdicts.append(abs(spent / base - 1) <= INDEPENDENT)
            verdict = "yes" if verdicts[-1] else "no"
        share = "" if not row.p50_us else f"{spent / row.p50_us:.0%}"
        rows.append(
            [
                *(row.contender, row.transport, row.case, format_size(row.size)),
                *(duration(spent), f"{spent / base:.2f}x", verdict, share),
            ]
        )
    limit = f"within {INDEPENDENT:.0%}"
    head = ["contender", "path", "case", "size", "in serializers", "of the first", limit]
    head += ["of a call"]
    about = (
        "What the caller spends in serializers for a call, beside the first row of the same "
        "payload, and as a part of the call's p50."
    )
    if verdicts:
        about += (
            " The paper has it independent of how messages travel. Here it is "
            f"{limit} of the first in {sum(verdicts)} of {len(verdicts)} other rows."
        )
    return Table("Serializers", head, rows, 3, about)


def of_reading(run: Run) -> Table | None:
    """What part of each row's time its receivers read; None where that was not measured."""
    limits = {
        each.work.comparable: each
        for each in run.measured
        if each.row.contender == READING and each.row.reads
    }
    rows = []
    for each in run.measured:
        limit = limits.get(each.work.comparable)
        if limit is None or each.role == "limit" or (by := ratio(limit, each, paired=True)) is None:
            continue
        row = each.row
        rows.append(
            [
                *(row.contender, row.transport, row.case, format_size(row.size)),
                *(payload_of(each), str(row.callers), _part(by)),
                *(
                    "" if of is None else f"{significant(of)}x"
                    for of in (row.ratio, limit.row.ratio)
                ),
            ]
        )
    if not rows:
        return None
    head = [
        "contender",
        "path",
        "case",
        "size",
        "payload",
        "callers",
        "reading",
        "ratio",
        "at most",
    ]
    about = (
        "Receivers add up all bytes. reading: what that takes of a call (of several callers, of "
        "their calls), by the limit line that reads the same bytes in memory of its own and sends "
        "nothing; other readers are no faster. at most: the ratio of that line, which a row would "
        "reach if all but the reading took no time."
    )
    return Table("What reading takes", head, rows, 5, about)


def _part(faster: Ratio) -> str:
    """faster: how many times faster the part is than the whole."""
    text = f"{1 / faster.value:.0%}"
    if faster.low is None or faster.high is None:
        return text
    return f"{text} ({1 / faster.high:.0%} to {1 / faster.low:.0%})"


def of_scaling(run: Run) -> Table | None:
    """Trainings over the number of their ranks; None where no efficiency was measured."""
    if all(each.efficiency is None for each in run.measured):
        return None
    series: dict[tuple[str, str], dict[int, Measured]] = {}
    for each in run.measured:
        series.setdefault((each.row.contender, each.row.transport), {})[each.row.callers] = each
    ranks = sorted({each.row.callers for each in run.measured})
    columns: dict[str, Callable[[Measured], str]] = {
        "images/s": lambda each: _or_empty(significant, each.row.items_per_s),
        "efficiency": lambda each: _or_empty("{:.0%}".format, each.efficiency),
        "CPU": lambda each: _or_empty(lambda s: duration(s * 1e6), each.row.cpu_s_per_call),
    }
    rows = [
        [*who, *(of(found[n]) if n in found else "" for of in columns.values() for n in ranks)]
        for who, found in series.items()
    ]
    head = ["contender", "path", *(f"{name} x{n}" for name in columns for n in ranks)]
    about = (
        "x2: of two ranks. images/s: of all ranks together. efficiency: images/s by those of as "
        "many ranks, each as fast as one that exchanges nothing and is alone. CPU: time of "
        "processors for one step, of all ranks and servers."
    )
    return Table("Over the number of ranks", head, rows, 2, about)


def _or_empty(text: Callable[[float], str], value: float | None) -> str:
    return "" if value is None else text(value)


SPECIAL: Final[Sequence[Callable[[Run], Table | None]]] = (
    of_ideas,
    of_types,
    of_serializers,
    of_reading,
    of_scaling,
)
"""What only some runs have."""
