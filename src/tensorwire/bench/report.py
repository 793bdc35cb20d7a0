# SPDX-License-Identifier: Apache-2.0
"""A run's results for people: one table, and a picture where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tensorwire.bench import terminal
from tensorwire.bench.work import CASES, PAYLOADS, format_size
from tensorwire.terminal import Column, show

if TYPE_CHECKING:
    from rich.console import Console

LEGEND = (
    "p50 and p99: the median over the rounds of each round's own quantile; of a stream's time for "
    "one message where the case is stream. spread: of the rounds' p50, largest less smallest.",
    "read: the receiver adds up all bytes; otherwise it is handed them and looks at none. What is "
    "published, goes over shm and is not read is only announced: there is no rate and no ratio.",
    "CPU: seconds of both processes, all their threads, for 10^9 bytes of payload.",
    "x grpcio: how many times faster than grpcio (sync, ready messages) at the "
    "same case, size and reading, in the same rounds, by p50 (several callers: by msg/s); x p99: "
    "by p99.",
)


def ordered(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """By case and size; inside those the baseline first, then as they come."""
    return sorted(
        rows,
        key=lambda row: (
            CASES.index(row["case"]),
            row["size"],
            PAYLOADS.index(row["payload"]),
            row["reads"],
            row["contender"] != "grpcio",
        ),
    )


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


def optional(value: float | None, text: Callable[[float], str] = significant) -> str:
    """Empty where there is no such figure."""
    return "" if value is None else text(value)


COLUMNS = (
    Column("contender", lambda row: row["contender"], text=True),
    Column("path", lambda row: row["transport"], text=True),
    Column(
        "payload",
        lambda row: row["origin"] if row["payload"] == "array" else row["payload"],
        text=True,
    ),
    Column("read", lambda row: "yes" if row["reads"] else "no", text=True, leaves=1),
    Column("p50", lambda row: duration(row["p50_us"])),
    Column("spread", lambda row: f"{row['p50_spread']:.0%}", leaves=4),
    Column("p99", lambda row: duration(row["p99_us"]), leaves=3),
    Column("GB/s", lambda row: optional(row["gb_per_s"]), leaves=5),
    Column("msg/s", lambda row: optional(row["msgs_per_s"], rate), leaves=7),
    Column("CPU s/GB", lambda row: optional(row["cpu_s_per_gb"]), leaves=6),
    Column("x grpcio", lambda row: optional(row["ratio_to_grpcio"])),
    Column("x p99", lambda row: optional(row["p99_ratio_to_grpcio"]), leaves=8),
    Column("note", lambda row: row["note"], text=True, leaves=9),
)


def print_table(report: dict[str, Any], console: Console) -> None:
    """report: what ``--json`` prints."""
    environment = report["environment"]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in ordered(report["rows"]):
        group = f"{row['case']} {format_size(row['size'])}"
        if row["callers"] > 1:
            group += f" x{row['callers']}"
        groups.setdefault(group, []).append(row)
    left_out = terminal.print_table(
        console,
        "tensorwire bench rpc",
        COLUMNS,
        groups.items(),
        lambda row: bool(row["contender"] == "tensorwire"),
    )
    control = environment["congestion_control"]
    show(
        console,
        f"{environment['cpus']} CPUs ({environment['cpu']}), kernel {environment['kernel']}, "
        f"Python {environment['python']}, load before {environment['load_average']:.1f}. "
        f"TCP congestion control: {control['default']} by default here, "
        f"{control['same_host_links']} on tensorwire's links within a host.",
    )
    lines = [*LEGEND, *environment["notes"]]
    if COLUMNS[-1] in left_out:
        notes = {f"{row['contender']} {row['transport']}": row["note"] for row in report["rows"]}
        lines += [f"{who}: {note}" for who, note in notes.items() if note]
    for line in lines:
        show(console, f"- {line}")


def plot(report: dict[str, Any], path: str) -> None:
    """Time over size, one panel for each case, into a file whose ending gives the format.

    Raises ImportError where matplotlib is missing.
    """
    from matplotlib.figure import Figure

    rows = [row for row in ordered(report["rows"]) if not row["reads"] and row["size"]]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure = Figure(figsize=(6 * max(len(cases), 1), 5), layout="constrained")
    axes = figure.subplots(1, max(len(cases), 1), squeeze=False)[0]
    for axis, case in zip(axes, cases, strict=False):
        series: dict[str, list[tuple[int, float]]] = {}
        for row in rows:
            if row["case"] == case:
                label = f"{row['contender']} {row['transport']}"
                if row["origin"] == "published":
                    label += ", published"
                if row["payload"] != "array":
                    label += f", {row['payload']}"
                series.setdefault(label, []).append((row["size"], row["p50_us"]))
        for label, points in series.items():
            axis.plot(*zip(*points, strict=True), marker="o", label=label)
        axis.set(title=case, xlabel="bytes", ylabel="p50, us", xscale="log", yscale="log")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.savefig(path)
