# SPDX-License-Identifier: Apache-2.0
"""What ``tensorwire tune links`` shows of what it has measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tensorwire.bench.harness import environment
from tensorwire.bench.harness.contenders import Role
from tensorwire.bench.harness.rows import Report, Row, spread
from tensorwire.bench.harness.work import format_size
from tensorwire.bench.suites.links.checking import Checked
from tensorwire.bench.suites.links.curves import Shape, Times
from tensorwire.bench.suites.links.suite import Tuned
from tensorwire.bench.suites.links.tuning import BULK, COPIED, curve, even

ROLES: Final[Mapping[str, Role]] = {"defaults": "own", "tuned": "own", "best fixed": "limit"}
"""Of what the check compares."""
CASE: Final = "calls and streams"
CALMEST: Final = (
    "A figure is of the calm quarter of the calls and of the rounds; intervals are of the medians "
    "of rounds."
)


def as_json(path: Path, found: Sequence[Tuned], notes: Sequence[str]) -> dict[str, Any]:
    return {
        "table": str(path),
        "transports": [
            {
                "transport": each.transport,
                "choices": [asdict(choice) for choice in each.choices],
                "copied_over_bulk": {str(size): x for size, x in curve(each.curves.times).items()},
                "even_bytes": even(curve(each.curves.times)),
                "times": [
                    {
                        **asdict(shape),
                        "thresholds": asdict(fixed),
                        "us": us,
                        "rounds_us": each.curves.visits[shape, fixed],
                    }
                    for (shape, fixed), us in each.curves.times.items()
                ],
                "check": [{**asdict(row), "passed": row.passed} for row in each.checked],
            }
            for each in found
        ],
        "notes": list(notes),
    }


def as_report(described: dict[str, Any], found: Sequence[Tuned], notes: Sequence[str]) -> Report:
    """What the check has found, as other suites report: at each size the time as tuned, with the
    defaults, and of the fixed value that is fastest there, with those of each round. What was
    chosen is in the notes. described: the environment, before anything was measured."""
    chosen = [
        f"{each.transport} to {each.peer}: {each.threshold} {format_size(each.bytes)}, "
        f"by default {format_size(each.default)}"
        for of in found
        for each in of.choices
    ]
    environment.ended(described, [*chosen, *notes, CALMEST], interrupted=False)
    rows, rounds = [], []
    for of in found:
        for checked in of.checked:
            for name, us, each in zip(
                ROLES,
                (checked.default_us, checked.tuned_us, checked.best_us),
                (checked.default_rounds_us, checked.tuned_rounds_us, checked.best_rounds_us),
                strict=True,
            ):
                rows.append(
                    Row(
                        *(name, of.transport, _case(checked), checked.size),
                        p50_us=us,
                        p50_spread=spread(each) if each else None,
                        ratio=checked.default_us / us,
                    )
                )
                rounds.append({"p50_us": [*each]})
    details = {"rounds": rounds} if any(each["p50_us"] for each in rounds) else {}
    return Report("links", next(iter(ROLES)), described, rows, details)


def _case(row: Checked) -> str:
    return CASE if row.segments == 1 else f"{CASE} of {row.segments} segments"


def pairs(times: Times) -> dict[Shape, tuple[float, float]]:
    """Of single segments: microseconds copied along, and in bulk."""
    return {
        shape: (times[shape, COPIED], us) for (shape, fixed), us in times.items() if fixed == BULK
    }


def print_tuned(found: Sequence[Tuned], notes: Sequence[str]) -> None:
    from tensorwire.bench.harness.report import duration, significant
    from tensorwire.bench.harness.report import table as laid_out
    from tensorwire.terminal import Column, console, fitted, show

    out = console()

    def put(columns: Sequence[Any], groups: Sequence[tuple[None, Sequence[Any]]]) -> None:
        made, _ = fitted(out, columns, lambda shown: laid_out(shown, groups))
        show(out, made)

    put(
        (
            Column("transport", lambda row: row[0], text=True),
            Column("messages", lambda row: f"{row[1].case}, {row[1].origin}", text=True),
            Column("segment", lambda row: format_size(row[1].size)),
            Column("copied along", lambda row: duration(row[2][0])),
            Column("in bulk", lambda row: duration(row[2][1])),
            Column("x", lambda row: significant(row[2][0] / row[2][1])),
        ),
        [
            (None, [(each.transport, shape, us) for shape, us in group])
            for each in found
            for group in _by_kind(each)
        ],
    )
    put(
        (
            Column("transport", lambda choice: choice.transport, text=True),
            Column("to", lambda choice: choice.peer, text=True),
            Column("threshold", lambda choice: choice.threshold, text=True),
            Column("default", lambda choice: format_size(choice.default)),
            Column("chosen", lambda choice: _chosen(choice.bytes, choice.default)),
        ),
        [(None, each.choices) for each in found],
    )
    for each in found:
        show(out, f"- {each.transport}: {crossing(each)}")
    if any(each.checked for each in found):
        put(
            (
                Column("transport", lambda row: row[0], text=True),
                Column("segments", lambda row: f"{row[1].segments} x {format_size(row[1].size)}"),
                Column("default", lambda row: duration(row[1].default_us)),
                Column("tuned", lambda row: duration(row[1].tuned_us)),
                Column("best fixed", lambda row: duration(row[1].best_us)),
                Column("x default", lambda row: significant(row[1].default_us / row[1].tuned_us)),
                Column("x default at worst", lambda row: significant(row[1].worst), leaves=1),
                Column("rounds apart", lambda row: _apart(row[1]), leaves=2),
                Column("x best", lambda row: significant(row[1].best_us / row[1].tuned_us)),
                Column("", lambda row: "" if row[1].passed else "not passed", text=True),
            ),
            [(None, [(each.transport, row) for row in each.checked]) for each in found],
        )
    for note in notes:
        show(out, f"- {note}")


def _apart(row: Checked) -> str:
    """How far the rounds as tuned are apart."""
    return f"{spread(row.tuned_rounds_us):.0%}" if row.tuned_rounds_us else ""


def crossing(each: Tuned) -> str:
    """Where the curves cross, in words."""
    if (size := even(curve(each.curves.times))) is None:
        return "the curves do not cross at these sizes"
    return f"copying along and bulk take the same at {size} bytes, by the mean of all messages"


def _by_kind(each: Tuned) -> list[list[tuple[Shape, tuple[float, float]]]]:
    kinds: dict[tuple[str, str], list[tuple[Shape, tuple[float, float]]]] = {}
    for shape, us in pairs(each.curves.times).items():
        kinds.setdefault((shape.case, shape.origin), []).append((shape, us))
    return list(kinds.values())


def _chosen(nbytes: int, default: int) -> str:
    return "" if nbytes == default else format_size(nbytes)


def draw(found: Sequence[Tuned], path: Path) -> None:
    """Time over the size of a segment, copied along and in bulk, a picture for each transport, with
    lines at the threshold that was chosen and where both take the same. ImportError where
    matplotlib is missing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * max(len(found), 1), 5), layout="constrained")
    for place, each in enumerate(found):
        axes = figure.add_subplot(1, len(found), place + 1)
        for number, group in enumerate(_by_kind(each)):
            for style, which, name in (("-", 0, "copied along"), ("--", 1, "in bulk")):
                axes.plot(
                    [shape.size for shape, _ in group],
                    [us[which] for _, us in group],
                    style,
                    color=f"C{number}",
                    label=f"{group[0][0].case}, {group[0][0].origin}, {name}",
                )
        (eager,) = (c.bytes for c in each.choices if c.threshold == "eager_bytes")
        axes.axvline(eager, color="grey", linewidth=1, label="chosen")
        if (size := even(curve(each.curves.times))) is not None:
            axes.axvline(size, color="grey", linewidth=1, linestyle=":", label="the curves cross")
        axes.set(
            title=each.transport, xlabel="bytes of a segment", ylabel="us of a call or message"
        )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.legend(fontsize="small")
    figure.savefig(path)
