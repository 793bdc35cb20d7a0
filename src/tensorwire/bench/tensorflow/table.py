# SPDX-License-Identifier: Apache-2.0
"""The results for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorwire.bench import terminal
from tensorwire.bench.report import duration, optional, significant
from tensorwire.bench.work import format_size
from tensorwire.terminal import Column, show

if TYPE_CHECKING:
    from rich.console import Console

LEGEND = (
    "A step is a whole session.run; p50 and p99: the median over the rounds of each round's own "
    "quantile. spread: of the rounds' p50, largest less smallest.",
    "CPU: seconds of both processes, all their threads, for one step.",
    "x grpc: how many times faster than stock gRPC in the same rounds, by p50; x p99: by p99.",
    "in place: the share of the bytes that the receiver read in the sender's memory; collectives "
    "do not count it.",
)

COLUMNS = (
    Column("contender", lambda row: row["contender"], text=True),
    Column("path", lambda row: row["transport"], text=True),
    Column("p50", lambda row: duration(row["p50_ms"] * 1e3)),
    Column("spread", lambda row: f"{row['p50_spread']:.0%}", leaves=3),
    Column("p99", lambda row: duration(row["p99_ms"] * 1e3), leaves=1),
    Column("CPU s/step", lambda row: significant(row["cpu_s_per_step"]), leaves=2),
    Column("x grpc", lambda row: optional(row["ratio_to_grpc"])),
    Column("x p99", lambda row: optional(row["p99_ratio_to_grpc"]), leaves=4),
    Column("in place", lambda row: "" if row["in_place"] is None else f"{row['in_place']:.0%}"),
    Column("steps", lambda row: str(row["steps"]), leaves=5),
)


def print_table(report: dict[str, Any], console: Console) -> None:
    """report: what ``--json`` prints."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in report["rows"]:
        groups.setdefault(f"{row['case']} {format_size(row['size'])}", []).append(row)
    terminal.print_table(
        console,
        "tensorwire bench tensorflow",
        COLUMNS,
        groups.items(),
        lambda row: bool(row["contender"] == "tensorwire"),
    )
    environment = report["environment"]
    show(
        console,
        f"{environment['cpus']} CPUs ({environment['cpu']}), kernel {environment['kernel']}, "
        f"TensorFlow {environment['versions']['tensorflow']}, "
        f"load before {environment['load_average']:.1f}.",
    )
    for line in (*LEGEND, *environment["notes"]):
        show(console, f"- {line}")
