# SPDX-License-Identifier: Apache-2.0
"""The figures of a run as pictures: for each figure and each case one, as plotly.js takes it, and
in words for those who do not see it."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorwire.bench.harness.report import duration, rate, significant
from tensorwire.bench.harness.work import format_size
from tensorwire.bench.report.comparison import Change, Comparison, name_of
from tensorwire.bench.report.runs import Measured, Run, Samples

MAX_SERIES: Final = 20
"""Of a picture; those after them are in the table only."""
MAX_CHANGES: Final = 60
MAX_LABEL: Final = 60
"""Characters of a text in a picture."""
MAX_POINTS: Final = 2000
"""Of a timeline; of more, every second, third ... one is drawn."""

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#c4709f", "#9a7700", "#2a86bd")
"""After M. Okabe and K. Ito, whose set colour-blind readers tell apart; the light ones are darker
here, so that all of them stand out on white and on black."""
PLAIN: Final = "#808080"
"""Of the baseline and of limit lines."""
SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x")
DASHES: Final = ("solid", "dash", "dashdot", "longdash")
PATTERNS: Final = ("", "/", ".", "x", "-", "\\", "+", "|")


@dataclass(frozen=True)
class Metric:
    """A figure of rows. text: a value in words; log: whether its axis is logarithmic."""

    field: str
    title: str
    axis: str
    text: Callable[[float], str]
    log: bool = True


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


@dataclass(frozen=True)
class Chart:
    """figure: ``data`` and ``layout`` for plotly.js; words: what it shows."""

    title: str
    words: str
    figure: dict[str, Any]


def charts(run: Run, metric: Metric) -> Iterator[Chart]:
    """One for each case, and apart for receivers that read. Lines over size where a contender has
    several sizes, else bars."""
    rows = [each for each in run.measured if getattr(each.row, metric.field)]
    if metric.field == "calls_per_s":  # of one caller it is the time of a call once more
        rows = [each for each in rows if each.row.callers > 1 or not each.row.p50_us]
    if metric.field == "cpu_s_per_call":
        rows = [each for each in rows if each.row.cpu_s_per_gb is None]
    panels: dict[tuple[str, bool], list[Measured]] = {}
    for each in rows:
        panels.setdefault((each.row.case, each.row.reads), []).append(each)
    reading = {case for case, reads in panels if reads} & {c for c, reads in panels if not reads}
    for (case, reads), found in panels.items():
        title = f"{metric.title}: {case}"
        if case in reading:
            title += ", the receiver reads" if reads else ", not read"
        yield _chart(run, metric, title, found)


def _chart(run: Run, metric: Metric, title: str, rows: Sequence[Measured]) -> Chart:
    swept = _is_sweep(rows)
    payloads = len({each.row.payload for each in rows}) > 1 and swept
    callers = len({each.row.callers for each in rows}) > 1 and swept
    series: dict[str, list[Measured]] = {}
    for each in rows:
        series.setdefault(_label(each, payloads, callers), []).append(each)
    shown = dict(list(series.items())[:MAX_SERIES])
    make = _lines if swept else _bars
    looks = _looks(run)
    traces = [
        make(metric, label, each, looks[row.contender, row.transport, row.origin])
        for label, each in shown.items()
        for row in (each[0].row,)
    ]
    sizes = sorted({each.row.size for each in rows if each.row.size})
    layout = _layout(len(shown), metric.axis, log=metric.log and swept)
    if swept:
        ticks = sizes[:: -(-len(sizes) // 8)]
        layout["xaxis"] |= {
            "type": "log",
            "title": {"text": "payload"},
            "tickvals": ticks,
            "ticktext": [_bytes(size) for size in ticks],
        }
    if metric.field == "ratio":
        layout["shapes"] = [_line_at_one("y")]
    words = [f"{title}, {metric.axis}."]
    words += [_in_words(metric, label, each) for label, each in shown.items()]
    if len(series) > len(shown):
        words.append(f"{len(series) - len(shown)} more are in the table only.")
    if swept and any(not each.row.size for each in rows):
        words.append("What has no payload is in the table only.")
    return Chart(title, " ".join(words), {"data": traces, "layout": layout})


def _is_sweep(rows: Iterable[Measured]) -> bool:
    sizes: dict[str, set[int]] = {}
    for each in rows:
        sizes.setdefault(_label(each, True, True), set()).add(each.row.size)
    return any(len(found - {0}) > 1 for found in sizes.values())


def _label(measured: Measured, payloads: bool, callers: bool) -> str:
    row = measured.row
    words = [f"{row.contender} {row.transport}"]
    words += [row.origin] if row.origin != "ordinary" else []
    words += [row.payload] if payloads else []
    words += [f"{row.callers} callers"] if callers else []
    return ", ".join(words)


def _category(measured: Measured) -> str:
    """Of a bar: what differs between bars of one contender."""
    row = measured.row
    words = [] if row.payload in ("array", "tensor") else [row.payload]
    words += [_bytes(row.size)]
    words += [f"x{row.callers}"] if row.callers > 1 else []
    return " ".join(words)


@dataclass(frozen=True)
class Look:
    """How a contender looks in all pictures of a run."""

    colour: str
    dash: str
    symbol: str
    pattern: str


def _looks(run: Run) -> dict[tuple[str, str, str], Look]:
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
            found[who] = Look(PLAIN, "dot", _of(SYMBOLS, limits), _of(PATTERNS, limits))
        else:
            dash = _of(DASHES, coloured // len(COLOURS))
            looks = (_of(COLOURS, coloured), dash, _of(SYMBOLS, coloured), _of(PATTERNS, coloured))
            found[who] = Look(*looks)
            coloured += 1
    return found


def _lines(metric: Metric, label: str, rows: Sequence[Measured], look: Look) -> dict[str, Any]:
    points = sorted((each for each in rows if each.row.size), key=lambda each: each.row.size)
    values = [getattr(each.row, metric.field) for each in points]
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": _safe(label),
        "x": [each.row.size for each in points],
        "y": values,
        "line": {"color": look.colour, "dash": look.dash, "width": 2},
        "marker": {"color": look.colour, "size": 7, "symbol": look.symbol},
        "customdata": [
            _safe(f"{_bytes(each.row.size)}: {metric.text(value)}")
            for each, value in zip(points, values, strict=True)
        ],
        "hovertemplate": "%{fullData.name}<br>%{customdata}<extra></extra>",
    }
    return trace | _errors(metric, points)


def _bars(metric: Metric, label: str, rows: Sequence[Measured], look: Look) -> dict[str, Any]:
    values = [getattr(each.row, metric.field) for each in rows]
    trace = {
        "type": "bar",
        "name": _safe(label),
        "x": [_safe(_category(each)) for each in rows],
        "y": values,
        "marker": {
            "color": look.colour,
            "pattern": {
                "shape": look.pattern,
                "fillmode": "overlay",
                "fgcolor": "#ffffff",
                "solidity": 0.2,
            },
        },
        "customdata": [
            _safe(f"{_category(each)}: {metric.text(value)}")
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


def timeline(samples: Samples, name: str) -> Chart:
    """One resource of one contender over time."""
    step = -(-len(samples.seconds) // MAX_POINTS) or 1
    values = samples.figures[name][::step]
    who = " ".join(filter(None, (samples.contender, samples.transport, samples.case)))
    trace = {
        "type": "scatter",
        "mode": "lines",
        "name": _safe(who),
        "x": samples.seconds[::step],
        "y": values,
        "line": {"color": COLOURS[0], "width": 2},
        "hovertemplate": "%{x:.3g} s: %{y:.4g}<extra></extra>",
    }
    layout = _layout(0, name, log=False)
    layout["xaxis"]["title"] = {"text": "seconds"}
    title = f"{name}: {who}"
    words = f"{title} over time."
    if values:
        words += (
            f" From {significant(min(values))} to {significant(max(values))} "
            f"in {significant(samples.seconds[-1])} seconds."
        )
    return Chart(title, words, {"data": [trace], "layout": layout})


def changes(found: Comparison) -> Chart:
    """The ratios of our rows with their intervals; the largest changes, where there are many."""
    ours = [each for each in found.changes if each.after.role == "own"] or found.changes
    ours = sorted(ours, key=lambda each: abs(1 - each.ratio.value), reverse=True)[:MAX_CHANGES]
    ours.sort(key=lambda each: each.ratio.value, reverse=True)
    marks: dict[str, Any] = {"slower": [], "faster": [], "same": [], "unknown": []}
    for each in ours:
        marks[each.verdict].append(each)
    looks = {
        "slower": (COLOURS[1], "triangle-left"),
        "faster": (COLOURS[0], "triangle-right"),
        "same": (PLAIN, "circle"),
        "unknown": (PLAIN, "x"),
    }
    traces = [
        _change_marks(verdict, marks[verdict], *looks[verdict])
        for verdict in looks
        if marks[verdict]
    ]
    layout = _layout(len(traces), "", log=False)
    layout["height"] = 160 + 22 * len(ours)
    layout["margin"]["t"] = 60
    layout["xaxis"] |= {
        "type": "log",
        "title": {"text": "times faster than before"},
        "side": "top",
    }
    layout["yaxis"] |= {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": [_safe(name_of(each.after)) for each in ours],
    }
    layout["shapes"] = [_line_at_one("x")]
    words = [f"Ratios of {len(ours)} rows."]
    words += [f"{name_of(each.after)}: {each.ratio.value:.2f}x, {each.verdict}." for each in ours]
    return Chart(
        "How many times faster than before", " ".join(words), {"data": traces, "layout": layout}
    )


def _change_marks(
    verdict: str, found: Sequence[Change], colour: str, symbol: str
) -> dict[str, Any]:
    values = [each.ratio.value for each in found]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": verdict,
        "x": values,
        "y": [_safe(name_of(each.after)) for each in found],
        "marker": {"color": colour, "symbol": symbol, "size": 9},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [max((each.ratio.high or 0) - each.ratio.value, 0) for each in found],
            "arrayminus": [
                max(each.ratio.value - (each.ratio.low or each.ratio.value), 0) for each in found
            ],
            "thickness": 1,
            "width": 3,
        },
        "hovertemplate": "%{y}<br>%{x:.3f}x<extra></extra>",
    }


def _layout(series: int, axis: str, *, log: bool) -> dict[str, Any]:
    """Colours of ink and paper are the page's, by its style."""
    return {
        "height": 340 + 20 * series,
        "margin": {"l": 64, "r": 12, "t": 12, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "barmode": "group",
        "showlegend": series > 0,
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        "xaxis": {"automargin": True},
        "yaxis": {
            "type": "log" if log else "linear",
            "title": {"text": _safe(axis)},
            "automargin": True,
            "exponentformat": "SI",
        },
    }


def _line_at_one(axis: str) -> dict[str, Any]:
    other = "x" if axis == "y" else "y"
    return {
        "type": "line",
        f"{axis}0": 1,
        f"{axis}1": 1,
        f"{other}0": 0,
        f"{other}1": 1,
        f"{other}ref": "paper",
        "line": {"color": PLAIN, "width": 1},
    }


def _in_words(metric: Metric, label: str, rows: Sequence[Measured]) -> str:
    said = [
        f"{metric.text(getattr(each.row, metric.field))} at {_category(each)}"
        for each in sorted(rows, key=lambda each: each.row.size)
    ]
    ends = [said[0], said[-1]] if len(said) > 4 else said
    return f"{label}: {', '.join(ends)}."


def _of(each: Sequence[str], place: int) -> str:
    return each[place % len(each)]


def _bytes(size: int) -> str:
    """As people write it."""
    text = format_size(size)
    return f"{text[:-1]} {text[-1]}iB" if text[-1] in "KMG" else f"{text} B"


def _safe(text: str) -> str:
    """plotly.js reads a little HTML in all of its texts, and finds no room for very long ones."""
    short = text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return html.escape(short, quote=False)
