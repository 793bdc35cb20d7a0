# SPDX-License-Identifier: Apache-2.0
"""A comparison as a table on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from tensorwire.bench.harness.report import CONTENDER, PATH, duration, rate, significant, table
from tensorwire.bench.harness.work import format_size
from tensorwire.bench.report.comparison import Change, Comparison, name_of
from tensorwire.bench.report.runs import Measured
from tensorwire.bench.report.speed import CONFIDENCE, Ratio, figure
from tensorwire.terminal import Column, fitted, show, tell_left_out

if TYPE_CHECKING:
    from rich.console import Console

SHOWN_NAMES: Final = 8


def figure_in_words(measured: Measured, name: str) -> str:
    """What a row is compared by, with its unit."""
    value: float = getattr(measured.row, name)
    return {
        "p50_us": lambda: duration(value),
        "calls_per_s": lambda: f"{rate(value)}/s",
        "items_per_s": lambda: f"{significant(value)} images/s",
    }[name]()


def noise_in_words(by: Ratio) -> str:
    """The interval, or the noise where there is none."""
    if by.low is not None and by.high is not None:
        return f"{by.low:.2f} to {by.high:.2f}"
    return "not known" if by.noise is None else f"+-{by.noise:.0%}"


def _payload(change: Any) -> str:
    row = change.after.row
    return str(row.origin if row.payload == "array" else row.payload)


def _of(side: str) -> Column:
    def cell(change: Any) -> str:
        return figure_in_words(getattr(change, side), figure(change.after) or "p50_us")

    return Column(side, cell)


def _verdict(change: Change) -> str:
    return {"same": "", "unknown": "?"}.get(change.verdict, change.verdict)


COLUMNS: Final = (
    Column(CONTENDER.name, lambda change: change.after.row.contender, text=True),
    Column(PATH.name, lambda change: change.after.row.transport, text=True),
    Column("payload", _payload, text=True, leaves=2),
    Column("read", lambda change: "yes" if change.after.row.reads else "no", text=True, leaves=1),
    _of("before"),
    _of("after"),
    Column("ratio", lambda change: f"{change.ratio.value:.2f}x"),
    Column("noise", lambda change: noise_in_words(change.ratio), leaves=3),
    Column("", _verdict, text=True),
)


def print_comparison(found: Comparison, console: Console) -> None:
    """The table, what it means, and the regressions once more at the end."""
    groups: dict[str, list[Change]] = {}
    for change in found.changes:
        row = change.after.row
        ranks = f" x{row.callers}" if row.callers > 1 else ""
        groups.setdefault(f"{row.case} {format_size(row.size)}{ranks}", []).append(change)
    fitting, left_out = fitted(console, COLUMNS, lambda shown: table(shown, groups.items()))
    suite = f"tensorwire bench compare: {found.before.report.suite}"
    console.print(suite, style="bold", markup=False, highlight=False)
    show(console, f"before: {found.before.source}, after: {found.after.source}")
    show(console, fitting)
    tell_left_out(console, left_out)
    show(
        console,
        "- ratio: how many times faster than before. noise: its interval of 95 % by the bootstrap "
        "over rounds, or with fewer than five rounds their spread. slower, faster: by more than "
        f"{max(found.limit, found.moved):.0%} and than the noise.",
    )
    for note in found.notes:
        show(console, f"- {note}")
    for word, rows in (("gone", found.gone), ("new", found.new)):
        if rows:
            show(console, f"- {word.title()}, so not compared: {_names(rows)}.")
    if found.undecided:
        show(
            console,
            f"- Their noise is not known, so that they decide nothing (?): "
            f"{_names(each.after for each in found.undecided)}.",
        )
    if found.missing:
        show(console, f"Missing, of what was measured with others: {_names(found.missing)}.")
    slower = found.regressions
    if slower:
        show(console, f"Slower: {_names(each.after for each in slower)}.")
        if by_chance := round(len(found.changes) * (1 - CONFIDENCE) / 2):
            show(
                console,
                f"Measure these again before you believe it: of {len(found.changes)} rows that did "
                f"not change, about {by_chance} are below by chance.",
            )
    else:
        show(console, "No row of ours is slower beyond noise.")


def _names(rows: Iterable[Measured]) -> str:
    names = [name_of(each) for each in rows]
    more = len(names) - SHOWN_NAMES
    return "; ".join(names[:SHOWN_NAMES]) + (f"; and {more} more" if more > 0 else "")
