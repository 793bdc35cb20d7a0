# SPDX-License-Identifier: Apache-2.0
"""The rows of a run as pictures: for each figure and each case one, and in words for those who do
not see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorwire.bench.harness.report import duration, rate, significant
from tensorwire.bench.harness.work import format_size
from tensorwire.bench.report.picture import (
    COLOURS,
    DASHES,
    MAX_SERIES,
    PATTERNS,
    PLAIN,
    SYMBOLS,
    Chart,
    layout,
    line_at_one,
    nth,
    safe,
)
from tensorwire.bench.report.runs import Measured, Run


@dataclass(frozen=True)
class Metric:
    """A figure of rows. text: a value in words; log: whether its axis is logarithmic."""

    field: str
    title: str
    axis: str
    text: Callable[[float], str]
    log: bool = True


ANNOUNCED: Final = ", only announced"
HOLLOW: Final = "-open"
"""Behind the name of a mark."""
PALE: Final = 0.4
"""The opacity of a bar."""
HOW_ANNOUNCED: Final = (
    "Hollow marks and pale bars are of what is only announced: no byte moved, so that their time "
    "is that of a call, and not to be compared with those of others."
)

METRICS: Final = (
    Metric("p50_us", "Latency", "time of a call, p50 (us)", duration),
    Metric("p99_us", "Tail latency", "time of a call, p99 (us)", duration),
    Metric("gb_per_s", "Bandwidth", "payload (GB/s)", lambda value: f"{significant(value)} GB/s"),
    Metric("calls_per_s", "Calls in a second", "calls/s", lambda value: f"{rate(value)}/s"),
    Metric("items_per_s", "Images in a second", "images/s", significant, log=False),
    Metric(
        *("cpu_s_per_gb", "CPU for each GB", "CPU seconds for 10^9 bytes"),
        lambda value: f"{significant(value)} s/GB",
    ),
    Metric(
        *("cpu_s_per_call", "CPU for each call", "CPU seconds for a call"),
        lambda value: f"{significant(value)} s",
    ),
    Metric("ratio", "Against the baseline", "times faster", lambda value: f"{value:.3g}x"),
)


def draw(run: Run, metric: Metric) -> Iterator[Chart]:
    """Lines over size for each case of which a contender has several sizes, and bars for all other
    cases together (so of schemes); apart for receivers that read."""
    rows = [each for each in run.measured if getattr(each.row, metric.field)]
    if metric.field == "calls_per_s":  # of one caller mostly the time of a call once more
        rows = [
            each
            for each in rows
            if each.row.callers > 1 or not each.row.p50_us or each.figure == "calls_per_s"
        ]
    if metric.field == "cpu_s_per_call":
        rows = [each for each in rows if each.row.cpu_s_per_gb is None]
    swept = _swept(run)
    panels: dict[tuple[str | None, bool], list[Measured]] = {}
    for each in rows:
        case = each.row.case if each.row.case in swept else None
        panels.setdefault((case, each.row.reads), []).append(each)
    reading = {case for case, reads in panels if reads} & {c for c, reads in panels if not reads}
    for (case, reads), found in panels.items():
        names = dict.fromkeys(each.row.case for each in found)
        title = f"{metric.title}: {', '.join(names)}"
        if case in reading:
            title += ", the receiver reads" if reads else ", not read"
        yield _chart(
            run, metric, title, found, any(each.row.size for each in found) and case in swept
        )


def _swept(run: Run) -> set[str]:
    """Cases of which a contender has several sizes."""
    sizes: dict[tuple[str, str], set[int]] = {}
    for each in run.measured:
        series = (each.row.case, label(each, True, True))
        sizes.setdefault(series, set()).add(each.row.size)
    return {case for (case, _), found in sizes.items() if len(found - {0}) > 1}


def _chart(run: Run, metric: Metric, title: str, rows: Sequence[Measured], swept: bool) -> Chart:
    payloads = len({each.row.payload for each in rows}) > 1 and swept
    callers = len({each.row.callers for each in rows}) > 1 and swept
    series: dict[str, list[Measured]] = {}
    for each in rows:
        series.setdefault(label(each, payloads, callers), []).append(each)
    shown = dict(list(series.items())[:MAX_SERIES])
    make = _lines if swept else _bars
    known = looks(run)
    traces = [
        make(metric, name, each, known[row.contender, row.transport, row.origin])
        for name, each in shown.items()
        for row in (each[0].row,)
    ]
    sizes = sorted({each.row.size for each in rows if each.row.size})
    room = layout(len(shown), metric.axis, log=metric.log and swept)
    if swept:
        ticks = sizes[:: -(-len(sizes) // 8)]
        room["xaxis"] |= {
            "type": "log",
            "title": {"text": "payload"},
            "tickvals": ticks,
            "ticktext": [in_bytes(size) for size in ticks],
        }
    if metric.field == "ratio":
        room["shapes"] = [line_at_one("y")]
    words = [f"{title}, {metric.axis}."]
    words += [_in_words(metric, name, each) for name, each in shown.items()]
    if len(series) > len(shown):
        words.append(f"{len(series) - len(shown)} more are in the table only.")
    if swept and any(not each.row.size for each in rows):
        words.append("What has no payload is in the table only.")
    return Chart(title, " ".join(words), {"data": traces, "layout": room})


def label(measured: Measured, payloads: bool = False, callers: bool = False) -> str:
    row = measured.row
    words = [f"{row.contender} {row.transport}"]
    words += [row.origin] if row.origin != "ordinary" else []
    words += [row.payload] if payloads else []
    words += [f"{row.callers} callers"] if callers else []
    return ", ".join(words)


def _category(measured: Measured) -> list[str]:
    """Of a bar, in lines: what differs between bars of one contender."""
    return [measured.row.case, *_what(measured)]


def _what(measured: Measured) -> list[str]:
    row = measured.row
    payload = [] if row.payload in ("array", "tensor") else [row.payload]
    return [*payload, in_bytes(row.size) + (f" x{row.callers}" if row.callers > 1 else "")]


@dataclass(frozen=True)
class Look:
    """How a contender looks in all pictures of a run."""

    colour: str
    dash: str
    symbol: str
    pattern: str


def looks(run: Run) -> dict[tuple[str, str, str], Look]:
    """Of contenders on their transports, by kind of memory. The baseline and limits have no colour,
    and the colours begin with ours."""
    found: dict[tuple[str, str, str], Look] = {}
    coloured = limits = 0
    for each in sorted(run.measured, key=lambda each: each.role != "own"):
        row = each.row
        who = (row.contender, row.transport, row.origin)
        if who in found:
            continue
        if row.contender == run.report.baseline:
            found[who] = Look(PLAIN, "solid", "circle-open", "")
        elif each.role == "limit":
            limits += 1
            found[who] = Look(PLAIN, "dot", nth(SYMBOLS, limits), nth(PATTERNS, limits))
        else:
            dash = nth(DASHES, coloured // len(COLOURS))
            mark = (nth(SYMBOLS, coloured), nth(PATTERNS, coloured))
            found[who] = Look(nth(COLOURS, coloured), dash, *mark)
            coloured += 1
    return found


def _lines(metric: Metric, name: str, rows: Sequence[Measured], look: Look) -> dict[str, Any]:
    points = sorted((each for each in rows if each.row.size), key=lambda each: each.row.size)
    values = [getattr(each.row, metric.field) for each in points]
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": safe(name),
        "x": [each.row.size for each in points],
        "y": values,
        "line": {"color": look.colour, "dash": look.dash, "width": 2},
        "marker": {
            "color": look.colour,
            "size": 7,
            "symbol": [look.symbol + HOLLOW * each.announced for each in points],
        },
        "customdata": [
            safe(f"{in_bytes(each.row.size)}: {metric.text(value)}{ANNOUNCED * each.announced}")
            for each, value in zip(points, values, strict=True)
        ],
        "hovertemplate": "%{fullData.name}<br>%{customdata}<extra></extra>",
    }
    return trace | _errors(metric, points)


def _bars(metric: Metric, name: str, rows: Sequence[Measured], look: Look) -> dict[str, Any]:
    values = [getattr(each.row, metric.field) for each in rows]
    trace = {
        "type": "bar",
        "name": safe(name),
        "x": ["<br>".join(map(safe, _category(each))) for each in rows],
        "y": values,
        "marker": {
            "color": look.colour,
            "opacity": [PALE if each.announced else 1 for each in rows],
            "pattern": {
                "shape": look.pattern,
                "fillmode": "overlay",
                "fgcolor": "#ffffff",
                "solidity": 0.2,
            },
        },
        "customdata": [
            safe(f"{' '.join(_category(each))}: {metric.text(value)}{ANNOUNCED * each.announced}")
            for each, value in zip(rows, values, strict=True)
        ],
        "hovertemplate": "%{fullData.name}<br>%{customdata}<extra></extra>",
    }
    return trace | _errors(metric, rows)


def _errors(metric: Metric, rows: Sequence[Measured]) -> dict[str, Any]:
    """From the least of the rounds to the largest."""
    rounds = [getattr(each.rounds, metric.field, ()) for each in rows]
    if not rows or not all(rounds):
        return {}
    values = [getattr(each.row, metric.field) for each in rows]
    return {
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [max(max(each) - v, 0) for each, v in zip(rounds, values, strict=True)],
            "arrayminus": [max(v - min(each), 0) for each, v in zip(rounds, values, strict=True)],
            "thickness": 1,
            "width": 3,
        }
    }


def _in_words(metric: Metric, name: str, rows: Sequence[Measured]) -> str:
    said = [
        f"{metric.text(getattr(each.row, metric.field))} at {' '.join(_what(each))}"
        f"{ANNOUNCED * each.announced}"
        for each in sorted(rows, key=lambda each: each.row.size)
    ]
    ends = [said[0], said[-1]] if len(said) > 4 else said
    return f"{name}: {', '.join(ends)}."


def in_bytes(size: int) -> str:
    """As people write it; what is no whole number of a unit with three digits."""
    text = format_size(size)
    if text[-1] in "KMG":
        return f"{text[:-1]} {text[-1]}iB"
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{significant(size / unit)} {name}"
    return f"{text} B"
