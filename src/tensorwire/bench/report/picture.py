# SPDX-License-Identifier: Apache-2.0
"""What all pictures have in common, as plotly.js takes it: colours, room, and texts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_SERIES: Final = 20
"""Of a picture; those after them are in the table only."""
MAX_LABEL: Final = 60
"""Characters of a text in a picture."""

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#c4709f", "#9a7700", "#2a86bd")
"""After M. Okabe and K. Ito, whose set colour-blind readers tell apart; the light ones are darker
here, so that all of them stand out on white and on black."""
PLAIN: Final = "#808080"
"""Of the baseline and of limit lines."""
SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x")
DASHES: Final = ("solid", "dash", "dashdot", "longdash")
PATTERNS: Final = ("", "/", ".", "x", "-", "\\", "+", "|")


@dataclass(frozen=True)
class Chart:
    """figure: ``data`` and ``layout`` for plotly.js; words: what it shows."""

    title: str
    words: str
    figure: dict[str, Any]


def layout(series: int, axis: str, *, log: bool) -> dict[str, Any]:
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
            "title": {"text": safe(axis)},
            "automargin": True,
            "exponentformat": "SI",
        },
    }


def line_at_one(axis: str) -> dict[str, Any]:
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


def nth(each: Sequence[str], place: int) -> str:
    return each[place % len(each)]


def safe(text: str) -> str:
    """plotly.js reads a little HTML in all of its texts, and finds no room for very long ones."""
    short = text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return html.escape(short, quote=False)
