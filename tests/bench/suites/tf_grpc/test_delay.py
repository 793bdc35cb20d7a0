# SPDX-License-Identifier: Apache-2.0
"""A network of namespaces whose links have a delay, where the kernel can do that: in the virtual
machine of ``make test-verbs`` it can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensorwire.cli import app

INSIDE = Path("/run/verbs-vm").exists()
DELAY_US = 2_000
RATE = 40e6 / 8


@pytest.mark.timeout(400)  # emulation
def test_links_have_their_delay_and_their_rate() -> None:
    done = CliRunner().invoke(
        app,
        [
            *("bench", "p2p-latency", "--network", "40mbit,2ms", "--rounds", "1", "--json"),
            *("--seconds", "1", "--warm-up", "0", "--no-limits", "--origin", "ordinary"),
            *("--scheme", "uniform,custom", "--categories", "small", "--buffers", "1"),
            *("--pattern", "L"),
        ],
    )
    if not INSIDE and done.exit_code == 2 and "--network" in done.output:
        pytest.skip("no network namespaces, or no sch_netem, here")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert "40mbit and 2ms one way" in report["details"]["network"]
    rows = [(row["contender"], row["case"]) for row in report["rows"]]
    assert rows == [
        (name, case) for case in ("uniform", "custom") for name in ("grpcio", "tensorwire")
    ]
    for row, more in zip(report["rows"], report["details"]["rows"], strict=True):
        assert more["min_us"] >= 4 * DELAY_US, "two links there, and two back"
        if row["case"] == "custom":
            assert row["gb_per_s"] * 1e9 <= RATE, "a way is idle while the other one is used"
