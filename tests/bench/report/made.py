# SPDX-License-Identifier: Apache-2.0
"""Runs as benches write them, made without measuring."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tensorwire.bench.harness.rows import Report, Row, spread
from tensorwire.bench.report.runs import Measured, Run, parse

ROLES = {"tensorwire": "own", "grpcio": "peer", "zmq": "peer", "memcpy": "limit"}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&<b>"


def row(contender: str, times: Sequence[float], size: int = 8, **more: Any) -> Row:
    """times: of the rounds, in microseconds."""
    middle = sorted(times)[len(times) // 2]
    told: dict[str, Any] = {
        "transport": {"grpcio": "grpc", "memcpy": "memory"}.get(contender, "tcp"),
        "case": "request",
        "p50_us": middle,
        "p50_spread": spread(times),
        "p99_us": 2 * middle,
        "calls_per_s": 1e6 / middle,
        "gb_per_s": size / middle / 1e3 or None,
        "cpu_s_per_call": middle / 1e6,
        "cpu_s_per_gb": 0.5 if size else None,
        "ratio": 2.0,
    }
    return Row(contender, size=size, **{**told, "calls": 1000, **more})


def written(
    rows: Sequence[tuple[Row, Sequence[float]]],
    *,
    suite: str = "rpc",
    rounds: bool = True,
    singles: int = 0,
    environment: dict[str, Any] | None = None,
    **details: Any,
) -> bytes:
    """The JSON of a run of these rows, each with the times of its rounds. singles: how many single
    calls of each round are kept, from its time up to twice as long."""
    told = {"notes": [], "interrupted": False, "roles": ROLES, "time": "2026-01-02T03:04:05Z"}
    if rounds:
        details["rounds"] = [
            {
                "p50_us": list(times),
                "p99_us": [2 * each for each in times],
                "calls_per_s": [1e6 / each if each else 0 for each in times],
            }
            for _, times in rows
        ]
    if singles:
        details["rows"] = [
            {"samples_us": [[t * (1 + n / singles) for n in range(singles)] for t in times]}
            for _, times in rows
        ]
    report = Report(suite, "grpcio", {**told, **(environment or {})}, [r for r, _ in rows], details)
    return json.dumps(report.to_json()).encode()


def run(rows: Sequence[tuple[Row, Sequence[float]]], source: str = "run.json", **more: Any) -> Run:
    (found,) = parse(written(rows, **more), source)
    return found


def sweep(
    contender: str, factor: float = 1.0, sizes: Sequence[int] = (8, 65536, 1 << 20), **more: Any
) -> list[tuple[Row, list[float]]]:
    """Rows over sizes; a size of a mebibyte takes 100 us times the factor."""
    found = []
    for size in sizes:
        middle = factor * (10 + size / (1 << 20) * 90)
        times = [middle * each for each in (0.99, 1.0, 1.02, 0.98, 1.01)]
        found.append((row(contender, times, size, **more), times))
    return found


def measured(contender: str, times: Sequence[float], **more: Any) -> Measured:
    (found,) = run([(row(contender, times, **more), times)]).measured
    return found
