# SPDX-License-Identifier: Apache-2.0
"""A run's results for people: one table, and a picture where matplotlib is installed."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tensorwire.bench.harness import noise
from tensorwire.bench.harness.work import format_size
from tensorwire.terminal import Column, fitted, show, tell_left_out

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from tensorwire.bench.harness.rows import Report, Row


def of_case_and_size(row: Row) -> str:
    """The rows of one case and size stand together."""
    return f"{row.case} {format_size(row.size)}" + (f" x{row.callers}" if row.callers > 1 else "")


@dataclass(frozen=True)
class Layout:
    """How a suite's table looks. legend: lines below it; group: what rows stand together; more:
    columns after the others, of figures that only the whole report has."""

    title: Callable[[Report], str]
    columns: Sequence[Column]
    legend: Sequence[str]
    group: Callable[[Row], str] = of_case_and_size
    more: Callable[[Report], Sequence[Column]] = lambda report: ()


def duration(microseconds: float) -> str:
    """With three significant digits and the unit that suits."""
    for limit, divisor, unit in ((1e3, 1.0, "us"), (1e6, 1e3, "ms")):
        if microseconds < limit:
            return f"{significant(microseconds / divisor)} {unit}"
    return f"{significant(microseconds / 1e6)} s"


def significant(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.1e}"


def rate(value: float) -> str:
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{significant(value / limit)} {unit}"
    return significant(value)


def share(value: float) -> str:
    return f"{value:.0%}"


def figure(
    name: str,
    of: Callable[[Any], float | None],
    text: Callable[[float], str] = significant,
    leaves: int = 0,
) -> Column:
    """A column of figures; empty where there is no such figure."""

    def cell(row: Any) -> str:
        value = of(row)
        return "" if value is None else text(value)

    return Column(name, cell, leaves=leaves)


CONTENDER = Column("contender", lambda row: row.contender, text=True)
PATH = Column("path", lambda row: row.transport, text=True)
NOTE = Column("note", lambda row: row.note, text=True, leaves=9)


def ordered(rows: Iterable[Row], baseline: str) -> list[Row]:
    """By case and size; inside those the baseline first, then as they come."""
    rows = list(rows)
    cases = list(dict.fromkeys(row.case for row in rows))
    payloads = list(dict.fromkeys(row.payload for row in rows))
    return sorted(
        rows,
        key=lambda row: (
            cases.index(row.case),
            row.size,
            payloads.index(row.payload),
            row.reads,
            row.contender != baseline,
        ),
    )


def table(columns: Sequence[Column], groups: Iterable[tuple[str | None, Sequence[Any]]]) -> Table:
    """Of groups of rows, the name of each beside its first row; None: there are no names."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    groups = list(groups)
    named = any(name is not None for name, _ in groups)
    made = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    if named:
        made.add_column("case", no_wrap=True)
    for column in columns:
        column.head(made)
    for place, (name, rows) in enumerate(groups):
        if place:
            made.add_section()
        for number, row in enumerate(rows):
            cells = [column.cell(row) for column in columns]
            style = "bold" if named and "tensorwire" in row.contender else None
            made.add_row(*([name if number == 0 else ""] if named else []), *cells, style=style)
    return made


def print_report(report: Report, layout: Layout, console: Console) -> None:
    """A table no wider than the console, and what a reader has to know. Columns for which there is
    no room are left out, and said so below."""
    groups: dict[str, list[Row]] = {}
    for row in ordered(report.rows, report.baseline):
        groups.setdefault(layout.group(row), []).append(row)
    columns = [*layout.columns, *layout.more(report)]
    fitting, left_out = fitted(console, columns, lambda shown: table(shown, groups.items()))
    console.print(layout.title(report), style="bold", markup=False, highlight=False)
    show(console, fitting)
    tell_left_out(console, left_out)
    show(console, host(report.environment))
    calm = quiet(report.environment)
    lines = [*layout.legend, *([calm] if calm else []), *report.environment["notes"]]
    if NOTE in left_out:
        notes = {f"{row.contender} {row.transport}": row.note for row in report.rows}
        lines += [f"{who}: {note}" for who, note in notes.items() if note]
    for line in lines:
        show(console, f"- {line}")


def quiet(environment: dict[str, Any]) -> str:
    """How quiet that host was; empty where nobody looked."""
    told = {when: loops or {} for when, loops in environment.get("noise", {}).items()}
    loops = [
        f"{each['spread']:.0%} {when} ({name})"
        for when, each_ in told.items()
        for name, each in each_.items()
    ]
    if not loops:
        return ""
    before, after = (
        {name: (each["median_us"], each["spread"]) for name, each in told.get(when, {}).items()}
        for when in ("before", "after")
    )
    text = f"Turns of loops that do the same were apart by {', '.join(loops)}."
    return f"{found} {text}" if (found := noise.verdict(before, after)) else text


def host(environment: dict[str, Any]) -> str:
    """Where the figures were made."""
    control = environment["congestion_control"]
    software = f"kernel {environment['kernel']}, Python {environment['python']}"
    if "tensorflow" in environment["versions"]:
        software += f", TensorFlow {environment['versions']['tensorflow']}"
    return (
        f"{environment['cpus']} CPUs ({environment['cpu']}), {software}, "
        f"load before {environment['load_average']:.1f}. "
        f"TCP congestion control: {control['default']} by default here, "
        f"{control['same_host_links']} on tensorwire's links within a host."
    )


def write_csv(report: Report, path: Path) -> None:
    """A line for each row, with its fields, and with those of its details that are one figure."""
    details = report.details.get("rows") or [{}] * len(report.rows)
    lines = [
        {**{name: each for name, each in more.items() if _one(each)}, **asdict(row)}
        for row, more in zip(report.rows, details, strict=True)
    ]
    names = dict.fromkeys(name for row in report.rows[:1] for name in asdict(row))
    names |= dict.fromkeys(name for line in lines for name in line)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(lines)


def _one(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def plot(report: Report, path: Path) -> None:
    """Time over size, one panel for each case, into a file whose ending gives the format. Where the
    receiver of some rows reads and that of others does not, those are shown that do not. Marks of
    what is only announced are hollow.

    Raises ImportError where matplotlib is missing.
    """
    from matplotlib.figure import Figure

    rows = [row for row in ordered(report.rows, report.baseline) if row.size and row.p50_us]
    unread = [row for row in rows if not row.reads]
    rows = unread or rows
    cases = list(dict.fromkeys(row.case for row in rows))
    picture = Figure(figsize=(6 * max(len(cases), 1), 6), layout="constrained")
    axes = picture.subplots(1, max(len(cases), 1), squeeze=False)[0]
    looks: dict[str, dict[str, str]] = {}
    for axis, case in zip(axes, cases, strict=False):
        series: dict[str, list[Row]] = {}
        for row in rows:
            if row.case == case:
                label = f"{row.contender} {row.transport}"
                if row.origin == "published":
                    label += ", published"
                if row.payload not in ("array", "tensor"):
                    label += f", {row.payload}"
                series.setdefault(label, []).append(row)
        for label, points in series.items():
            look = looks.setdefault(label, _look(len(looks)))
            axis.plot(*_xy(points), label=label, **look)
            hollow = {**look, "linestyle": "", "markerfacecolor": "white"}
            if still := [row for row in points if row.announced]:
                axis.plot(*_xy(still), label="hollow: only announced, no byte moved", **hollow)
        axis.set(title=case, xlabel="bytes", ylabel="p50, us", xscale="log", yscale="log")
        axis.grid(alpha=0.3)
    shown = {
        label: line
        for axis in axes
        for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    picture.legend(
        shown.values(), shown.keys(), loc="outside lower center", ncols=4, fontsize="small"
    )
    picture.savefig(path)


def _xy(rows: Sequence[Row]) -> tuple[list[int], list[float | None]]:
    return [row.size for row in rows], [row.p50_us for row in rows]


def _look(place: int) -> dict[str, str]:
    """Of a line in all panels: another colour, or another dash and mark."""
    turn = place // 10
    return {
        "color": f"C{place % 10}",
        "linestyle": ("-", "--", ":")[turn % 3],
        "marker": ("o", "s", "^")[turn % 3],
    }
