# SPDX-License-Identifier: Apache-2.0
"""The picture of a comparison: how many times faster each row became, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tensorwire.bench.report.comparison import Change, Comparison, name_of
from tensorwire.bench.report.picture import COLOURS, PLAIN, Chart, layout, line_at_one, safe

MAX_CHANGES: Final = 60
"""Of a picture."""


def draw(found: Comparison) -> Chart:
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
    room = layout(len(traces), "", log=False)
    room["height"] = 160 + 22 * len(ours)
    room["margin"]["t"] = 60
    room["xaxis"] |= {
        "type": "log",
        "title": {"text": "times faster than before"},
        "side": "top",
    }
    room["yaxis"] |= {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": [safe(name_of(each.after)) for each in ours],
    }
    room["shapes"] = [line_at_one("x")]
    words = [f"Ratios of {len(ours)} rows."]
    words += [f"{name_of(each.after)}: {each.ratio.value:.2f}x, {each.verdict}." for each in ours]
    return Chart(
        "How many times faster than before", " ".join(words), {"data": traces, "layout": room}
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
        "y": [safe(name_of(each.after)) for each in found],
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
