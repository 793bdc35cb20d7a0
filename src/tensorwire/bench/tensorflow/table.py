"""The results for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorwire.bench.report import duration, optional, significant
from tensorwire.bench.work import format_size

if TYPE_CHECKING:
    from rich.console import Console

LEGEND = (
    "A step is a whole session.run; p50 and p99: the median over the rounds of each round's own "
    "quantile.",
    "CPU: seconds of both processes, all their threads, for one step.",
    "x grpc: how many times faster than stock gRPC in the same rounds, by p50; x p99: by p99.",
    "in place: the share of the bytes that the receiver read in the sender's memory; collectives "
    "do not count it.",
)

COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("contender", lambda row: row["contender"]),
    ("path", lambda row: row["transport"]),
    ("p50", lambda row: duration(row["p50_ms"] * 1e3)),
    ("p99", lambda row: duration(row["p99_ms"] * 1e3)),
    ("CPU s/step", lambda row: significant(row["cpu_s_per_step"])),
    ("x grpc", lambda row: optional(row["ratio_to_grpc"])),
    ("x p99", lambda row: optional(row["p99_ratio_to_grpc"])),
    ("in place", lambda row: "" if row["in_place"] is None else f"{row['in_place']:.0%}"),
    ("steps", lambda row: str(row["steps"])),
)
TEXT_COLUMNS = {"contender", "path"}


def print_table(report: dict[str, Any], console: Console) -> None:
    """report: what ``--json`` prints."""
    from rich.table import Table

    table = Table(title="tensorwire bench tensorflow", title_justify="left", header_style="bold")
    table.add_column("case")
    for name, _ in COLUMNS:
        table.add_column(name, justify="left" if name in TEXT_COLUMNS else "right", no_wrap=True)
    before = None
    groups = list(dict.fromkeys((row["case"], row["size"]) for row in report["rows"]))
    for row in sorted(report["rows"], key=lambda row: groups.index((row["case"], row["size"]))):
        group = f"{row['case']} {format_size(row['size'])}"
        if before is not None and group != before:
            table.add_section()
        style = "bold" if row["contender"] == "tensorwire" else None
        cells = [cell(row) for _, cell in COLUMNS]
        table.add_row("" if group == before else group, *cells, style=style)
        before = group
    console.print(table)
    environment = report["environment"]
    console.print(
        f"{environment['cpus']} CPUs ({environment['cpu']}), kernel {environment['kernel']}, "
        f"TensorFlow {environment['versions']['tensorflow']}, "
        f"load before {environment['load_average']:.1f}.",
        highlight=False,
    )
    for line in (*LEGEND, *environment["notes"]):
        console.print(f"- {line}", highlight=False, markup=False)
