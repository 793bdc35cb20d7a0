"""A run's results for people: one table, and a picture where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tensorwire.bench.work import CASES, PAYLOADS, format_size

if TYPE_CHECKING:
    from rich.console import Console

LEGEND = (
    "p50 and p99: the median over the rounds of each round's own quantile; of a stream's time for "
    "one message where the case is stream.",
    "read: the receiver adds up all bytes; otherwise it is handed them and looks at none.",
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


COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("contender", lambda row: row["contender"]),
    ("path", lambda row: row["transport"]),
    ("payload", lambda row: row["origin"] if row["payload"] == "array" else row["payload"]),
    ("read", lambda row: "yes" if row["reads"] else "no"),
    ("p50", lambda row: duration(row["p50_us"])),
    ("p99", lambda row: duration(row["p99_us"])),
    ("GB/s", lambda row: significant(row["gb_per_s"])),
    ("msg/s", lambda row: rate(row["msgs_per_s"])),
    ("CPU s/GB", lambda row: optional(row["cpu_s_per_gb"])),
    ("x grpcio", lambda row: optional(row["ratio_to_grpcio"])),
    ("x p99", lambda row: optional(row["p99_ratio_to_grpcio"])),
    ("note", lambda row: row["note"]),
)
TEXT_COLUMNS = {"contender", "path", "payload", "read", "note"}


def optional(value: float | None) -> str:
    return "" if value is None else significant(value)


def print_table(report: dict[str, Any], console: Console) -> None:
    """report: what ``--json`` prints."""
    from rich.table import Table

    environment = report["environment"]
    table = Table(title="tensorwire bench rpc", title_justify="left", header_style="bold")
    table.add_column("case")
    for name, _ in COLUMNS:
        table.add_column(name, justify="left" if name in TEXT_COLUMNS else "right", no_wrap=True)
    before = None
    for row in ordered(report["rows"]):
        group = f"{row['case']} {format_size(row['size'])}"
        if row["callers"] > 1:
            group += f" x{row['callers']}"
        if before is not None and group != before:
            table.add_section()
        style = "bold" if row["contender"] == "tensorwire" else None
        cells = [cell(row) for _, cell in COLUMNS]
        table.add_row("" if group == before else group, *cells, style=style)
        before = group
    console.print(table)
    control = environment["congestion_control"]
    console.print(
        f"{environment['cpus']} CPUs ({environment['cpu']}), kernel {environment['kernel']}, "
        f"Python {environment['python']}, load before {environment['load_average']:.1f}. "
        f"TCP congestion control: {control['default']} by default here, "
        f"{control['same_host_links']} on tensorwire's links within a host.",
        highlight=False,
    )
    for line in (*LEGEND, *environment["notes"]):
        console.print(f"- {line}", highlight=False, markup=False)


def plot(report: dict[str, Any], path: str) -> None:
    """Time over size, one panel for each case, into a file whose ending gives the format.

    Raises ImportError where matplotlib is missing.
    """
    from matplotlib.figure import Figure

    rows = [row for row in ordered(report["rows"]) if not row["reads"] and row["size"]]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure = Figure(figsize=(6 * len(cases), 5), layout="constrained")
    axes = figure.subplots(1, len(cases), squeeze=False)[0]
    for axis, case in zip(axes, cases, strict=True):
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
