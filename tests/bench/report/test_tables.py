# SPDX-License-Identifier: Apache-2.0
"""A run in tables: what each idea gives, and what serializers take."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tensorwire.bench.harness.rows import Report, Row
from tensorwire.bench.report import tables
from tensorwire.bench.report.runs import Run, parse

SIZE = 1 << 20
ROLES = {"grpcio": "peer", "memory": "limit", "sockets": "limit"}


def row(contender: str, way: str, p50_us: float = 0, **more: Any) -> Row:
    wanted = {"payload": "non-serialized", "reads": True, "p50_us": p50_us, **more}
    return Row(contender, way, "uniform", SIZE, **wanted)


def run(*rows: Row, rounds: bool = True, suite: str = "p2p-latency", **details: Any) -> Run:
    if rounds:
        details["rounds"] = [{"p50_us": [each.p50_us] * 5} for each in rows]
    environment = {"notes": [], "interrupted": False, "roles": ROLES}
    report = Report(suite, "grpcio", environment, list(rows), details)
    (found,) = parse(json.dumps(report.to_json()).encode(), "run.json")
    return found


def test_each_idea_is_compared_with_the_same_without_it() -> None:
    found = tables.of_ideas(
        run(
            row("grpcio", "grpc", 900),
            row("tensorwire", "shm", 100),
            row("tensorwire", "shm", 80, origin="published"),
            row("tensorwire-without-chunking", "shm", 150),
            row("tensorwire-without-chunking", "shm", 40, origin="published"),
            row("tensorwire-without-eager", "shm", 100),
            row("tensorwire", "tcp", 300),
        )
    )
    assert found is not None
    assert found.head[5:] == ["chunking", "eager", "zero-copy"]
    assert [[*each[:5]] for each in found.rows] == [
        ["shm", "uniform", "1M", "ordinary", "yes"],
        ["shm", "uniform", "1M", "published", "yes"],
        ["tcp", "uniform", "1M", "ordinary", "yes"],
    ]
    assert [[*each[5:]] for each in found.rows] == [
        ["1.50x (1.50 to 1.50)", "1.00x (1.00 to 1.00)", ""],
        ["0.50x (0.50 to 0.50)", "", "1.25x (1.25 to 1.25)"],
        ["", "", ""],
    ]
    assert found.about.endswith(
        ": chunking (up to 1.50x), zero-copy (up to 1.25x). In none: eager."
    )


def test_types_are_beside_the_first_with_the_same_bytes() -> None:
    made = [row("tensorwire", "shm", 90, payload=name) for name in ("float32", "bfloat16", "int8")]
    made[1:] = [replace(made[1], p50_us=100), replace(made[2], p50_us=45)]
    other = replace(made[1], contender="gloo")
    found = tables.of_types(run(*made, other, suite="collectives"))
    assert found is not None
    assert found.head[6] == "x float32"
    assert [each[4:] for each in found.rows] == [
        ["bfloat16", "100 us", "0.90x (0.90 to 0.90)", "yes"],
        ["int8", "45 us", "2.00x (2.00 to 2.00)", "yes"],
    ]
    assert tables.of_types(run(*made)) is None, "payloads of calls are no types"


def test_what_is_only_announced_tells_nothing_of_copies() -> None:
    found = tables.of_ideas(
        run(
            row("tensorwire", "shm", 100, reads=False),
            row("tensorwire", "shm", 5, reads=False, origin="published"),
            row("tensorwire-without-eager", "shm", 100, reads=False),
        )
    )
    assert found is not None
    assert [each[-1] for each in found.rows] == ["", ""]


def test_serializers_are_compared_over_transports() -> None:
    serialized = {"payload": "serialized"}
    found = tables.of_serializers(
        run(
            row("grpcio", "grpc", 900, **serialized),
            row("tensorwire", "shm", 400, **serialized),
            row("tensorwire", "tcp", 500, **serialized),
            row("zmq", "tcp", 500, **serialized),
            row("tensorwire", "shm", 100),
            rows=[{"serialization_us": each} for each in (200.0, 210.0, 230.0, 170.0, 0.0)],
        )
    )
    assert found is not None
    assert [[*each[4:]] for each in found.rows] == [
        ["200 us", "1.00x", "", "22%"],
        ["210 us", "1.05x", "yes", "52%"],
        ["230 us", "1.15x", "no", "46%"],
        ["170 us", "0.85x", "no", "34%"],
    ]
    assert found.head[4:] == ["in serializers", "of the first", "within 10%", "of a call"]
    assert "Here it is within 10% of the first in 1 of 3 other rows." in found.about
    alone = tables.of_serializers(
        run(row("grpcio", "grpc", 900, **serialized), rows=[{"serialization_us": 1.0}])
    )
    assert alone is not None
    assert "Here it is" not in alone.about


def test_reading_is_a_part_of_what_reads_the_same() -> None:
    several = {"callers": 3, "p50_us": 9.0}
    found = tables.of_reading(
        run(
            row("grpcio", "grpc", 800, ratio=1.0),
            row("tensorwire", "shm", 100, ratio=8.0),
            row("tensorwire", "shm", 40, reads=False, ratio=20.0),
            row("sockets", "tcp", 200, ratio=4.0),
            row("memory", "memory", 80, ratio=10.0),
            row("tensorwire", "tcp", calls_per_s=100.0, **several),
            row("memory", "memory", calls_per_s=400.0, **several),
        )
    )
    assert found is not None
    assert [[each[0], *each[5:]] for each in found.rows] == [
        ["grpcio", "1", "10% (10% to 10%)", "1x", "10x"],
        ["tensorwire", "1", "80% (80% to 80%)", "8x", "10x"],
        ["tensorwire", "3", "25%", "", ""],
    ]


def test_trainings_are_shown_over_the_number_of_their_ranks() -> None:
    def training(contender: str, way: str, ranks: int, images: float) -> Row:
        figures: dict[str, Any] = {"p50_us": 1.0, "items_per_s": images, "callers": ranks}
        return Row(contender, way, "lenet", 8, cpu_s_per_call=ranks / 10, **figures)

    found = tables.of_scaling(
        run(
            training("grpcio", "grpc", 1, 20),
            training("grpcio", "grpc", 2, 30),
            training("nothing", "none", 1, 100),
            training("hybrid", "shm", 2, 150),
            rows=[{"efficiency": each} for each in (0.2, 0.15, 1.0, None)],
        )
    )
    assert found is not None
    assert found.head[2:] == [
        *("images/s x1", "images/s x2", "efficiency x1", "efficiency x2", "CPU x1", "CPU x2")
    ]
    assert found.rows == [
        ["grpcio", "grpc", "20", "30", "20%", "15%", "100 ms", "200 ms"],
        ["nothing", "none", "100", "", "100%", "", "100 ms", ""],
        ["hybrid", "shm", "", "150", "", "", "", "200 ms"],
    ]


def test_runs_without_any_of_that_have_no_such_tables() -> None:
    plain = run(row("grpcio", "grpc", 900), row("tensorwire", "shm", 100))
    copies = run(
        row("memory", "memory", 9, reads=False), row("tensorwire", "shm", 100, reads=False)
    )
    for each in (plain, copies):
        assert [make(each) for make in tables.SPECIAL] == [None] * 5


def test_details_of_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="details of 1 rows, and there are 2 rows"):
        run(row("grpcio", "grpc", 9), row("tensorwire", "shm", 1), rows=[{"serialization_us": 1.0}])
    with pytest.raises(ValueError, match="serialization_us is -1"):
        run(row("grpcio", "grpc", 9), rows=[{"serialization_us": -1.0}])


def test_a_run_without_rounds_says_so() -> None:
    text = " ".join(tables.summary(run(row("grpcio", "grpc", 9), rounds=False)))
    assert "This run has no rounds" in text
    assert "no rounds" not in " ".join(tables.summary(run(row("grpcio", "grpc", 9))))
