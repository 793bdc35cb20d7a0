# SPDX-License-Identifier: Apache-2.0
"""How the times of single calls are distributed: pictures over the percentile, and a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tensorwire.bench.harness.measure import quantile
from tensorwire.bench.harness.report import duration
from tensorwire.bench.harness.work import format_size
from tensorwire.bench.report.charts import ANNOUNCED, HOLLOW, Look, in_bytes, label, looks
from tensorwire.bench.report.picture import MAX_SERIES, Chart, layout, safe
from tensorwire.bench.report.runs import Measured, Run
from tensorwire.bench.report.tables import Table, payload_of

TOLD: Final = (2, 10, 100, 1000)
"""Percentiles in words: the one that one time in so many is beyond."""
MARKS_IN_A_DECADE: Final = 8
"""Of a line."""


def draw(run: Run) -> Iterator[Chart]:
    """For each work one, a line for each contender of which single calls are known: how long calls
    take, over the percentile, the nearer to 100 % the wider."""
    panels: dict[tuple[object, ...], list[Measured]] = {}
    for each in run.measured:
        if each.samples_us:
            panels.setdefault(each.work.comparable, []).append(each)
    known = looks(run)
    for found in panels.values():
        yield _chart(found, known)


def table(run: Run) -> Table | None:
    """None where no single calls are known."""
    rows = []
    for each in run.measured:
        if not each.samples_us:
            continue
        row, times = each.row, _all(each)
        rows.append(
            [
                *(row.contender, row.transport, row.case, format_size(row.size), payload_of(each)),
                *("yes" if row.reads else "no", str(row.callers), str(len(times))),
                duration(times[0]),
                *(_beyond(times, of) if of <= _reach(each) else "" for of in TOLD),
                duration(times[-1]),
            ]
        )
    if not rows:
        return None
    head = ["contender", "path", "case", "size", "payload", "read", "callers", "times", "least"]
    head += [*(f"p{_percent(of)}" for of in TOLD), "most"]
    about = (
        "Of the times of single calls that the run kept, of all rounds together: all of a round, "
        "or 2,000 evenly spaced ones. A percentile is there where each round has so many times "
        "that one of them is beyond it."
    )
    return Table("Distribution", head, rows, 3, about)


def _name(measured: Measured) -> str:
    return label(measured) + ANNOUNCED * measured.announced


def _all(measured: Measured) -> list[float]:
    """Times of all rounds, in order."""
    return sorted(each for times in measured.samples_us for each in times)


def _reach(measured: Measured) -> int:
    """The times of the round with the fewest: one in more of them is not known."""
    return min(map(len, measured.samples_us))


def _beyond(times: Sequence[float], one_in: float) -> str:
    return duration(quantile(times, 1 - 1 / one_in))


def _chart(rows: Sequence[Measured], known: dict[tuple[str, str, str], Look]) -> Chart:
    first = rows[0].row
    words = [first.case, in_bytes(first.size)]
    words += [first.payload] if first.payload not in ("array", "tensor") else []
    words += [f"{first.callers} callers"] if first.callers > 1 else []
    words += ["the receiver reads"] if first.reads else []
    title = f"Distribution: {', '.join(words)}"
    shown = rows[:MAX_SERIES]
    traces = [
        _line(each, known[each.row.contender, each.row.transport, each.row.origin])
        for each in shown
    ]
    told = [f"{title}, time of a call over the percentile."]
    told += [f"{_name(each)}: {_in_words(each)}." for each in shown]
    if len(rows) > len(shown):
        told.append(f"{len(rows) - len(shown)} more are in the table only.")
    room = layout(len(traces), "time of a call (us)", log=True)
    most = max(map(_reach, shown))
    ticks = [1, 2, *(10**power for power in range(1, 7) if 10**power <= most)]
    room["xaxis"] |= {
        "type": "log",
        "title": {"text": "percentile"},
        "tickvals": ticks,
        "ticktext": [f"{_percent(one_in)} %" for one_in in ticks],
    }
    return Chart(title, " ".join(told), {"data": traces, "layout": room})


def _percent(one_in: float) -> str:
    return f"{100 - 100 / one_in:.6g}"


def _line(measured: Measured, look: Look) -> dict[str, Any]:
    times, reach = _all(measured), _reach(measured)
    across = [1.0]
    while (one_in := 10 ** (len(across) / MARKS_IN_A_DECADE)) <= reach:
        across.append(one_in)
    values = [quantile(times, 1 - 1 / one_in) for one_in in across]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": safe(_name(measured)),
        "x": across,
        "y": values,
        "line": {"color": look.colour, "dash": look.dash, "width": 2},
        "marker": {
            "color": look.colour,
            "size": 5,
            "symbol": look.symbol + HOLLOW * measured.announced,
        },
        "customdata": [
            safe(f"{_percent(one_in)} %: {duration(value)}")
            for one_in, value in zip(across, values, strict=True)
        ],
        "hovertemplate": "%{fullData.name}<br>%{customdata}<extra></extra>",
    }


def _in_words(measured: Measured) -> str:
    times, reach = _all(measured), _reach(measured)
    told = [f"{_beyond(times, of)} at {_percent(of)} %" for of in TOLD if of <= reach]
    return ", ".join([f"{duration(times[0])} at least", *told, f"{duration(times[-1])} at most"])
