# SPDX-License-Identifier: Apache-2.0
"""Tables of TF-gRPC-Bench."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.figures.rows import WAYS, Line, Rows, about, measured, table, times
from tests.figures.sets import load

from tensorwire.bench.harness.report import duration, rate, significant
from tensorwire.bench.harness.rows import Report, Row

BENCHMARKS: Final = {
    "p2p-latency": "latency",
    "p2p-bandwidth": "bandwidth",
    "ps-throughput": "2 servers, 3 workers",
    "mimic": "4 nodes, fully connected",
}


def _figure(row: Row, suite: str) -> str:
    if suite == "p2p-latency":
        return duration(measured(row.p50_us))
    if suite == "p2p-bandwidth":
        return f"{significant(measured(row.gb_per_s) * 1e3)} MB/s"
    return f"{rate(measured(row.calls_per_s))} RPC/s"


def _times(row: Row | None, stock: Row | None, suite: str, *, bold: bool = False) -> str:
    """How many times as fast as stock, by the figure that is shown."""
    if row is None or stock is None:
        return ""
    if suite == "p2p-latency":
        by = measured(stock.p50_us) / measured(row.p50_us)
    elif suite == "p2p-bandwidth":
        by = measured(row.gb_per_s) / measured(stock.gb_per_s)
    else:
        by = measured(row.calls_per_s) / measured(stock.calls_per_s)
    return about(times(by, bold=bold), row, stock)


def _lines(report: Report) -> Iterator[Line]:
    """From ordinary memory. What is read where that was measured, else what is not."""
    rows = Rows([report])
    reads = any(row.reads for row in report.rows)
    for case, size in dict.fromkeys((row.case, row.size) for row in report.rows):
        wanted = {"case": case, "size": size, "origin": "ordinary", "reads": reads}
        stock = rows.one(contender="grpcio", **wanted)
        ours = [rows.one(contender="tensorwire", transport=way, **wanted) for way in WAYS]
        limit = rows.one(contender="sockets-cubic", **wanted)
        yield [
            f"{BENCHMARKS[report.suite]}, {case}",
            _figure(stock, report.suite) if stock else "",
            *(
                f"{_figure(row, report.suite)} ({_times(row, stock, report.suite, bold=not place)})"
                if row
                else ""
                for place, row in enumerate(ours)
            ),
            _times(limit, stock, report.suite),
        ]


def benchmarks() -> str:
    reports = [*load("tf-grpc"), *load("mimic")]
    return table(
        ["", "grpcio", "shm", "tcp", "plain sockets"],
        [line for report in reports for line in _lines(report)],
    )
