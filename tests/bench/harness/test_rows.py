# SPDX-License-Identifier: Apache-2.0
"""The JSON object that all suites write."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from tensorwire.bench.harness.rows import SCHEMA, Report, Row

ROWS = [
    Row("grpcio", "grpc", "request", 8, p50_us=9.5, ratio=1.0),
    Row("grpc+tensorwire", "in place", "alexnet", 8, items_per_s=3, callers=2, note="a note"),
]
REPORT = Report("rpc", "grpcio", {"interrupted": True}, ROWS, {"curves": [1, 2]})


def written(**changed: Any) -> Any:
    return json.loads(json.dumps(REPORT.to_json() | changed))


def test_a_report_survives_being_written() -> None:
    assert Report.from_json(written()) == REPORT
    assert Report.from_json(written()).interrupted
    assert written()["schema"] == SCHEMA


def test_every_row_has_every_field() -> None:
    names = {each.name for each in fields(Row)}
    assert [set(row) for row in written()["rows"]] == [names, names]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"schema": SCHEMA + 1}, f"schema {SCHEMA + 1}, .* reads {SCHEMA}: measure again"),
        ({"rows": [{"contender": "grpcio"}]}, "missing or unknown: bytes_per_call"),
        ({"rows": [written()["rows"][0] | {"p50_ms": 1}]}, "unknown: p50_ms"),
        ({"rows": [written()["rows"][0] | {"p50_us": "fast"}]}, "p50_us"),
        ({"environment": None}, "environment"),
    ],
)
def test_what_is_no_report_of_this_schema_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Report.from_json(written(**changed))
