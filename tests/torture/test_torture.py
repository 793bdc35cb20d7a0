# SPDX-License-Identifier: Apache-2.0
"""The campaign's harness, and a small round of its torments; ``make torture`` is the real one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.torture import figures
from tests.torture.__main__ import DOCS, PLACES, chosen, write_docs
from tests.torture.campaign import PARTS
from tests.torture.hostile import KINDS

ROOT = Path(__file__).resolve().parents[2]


def test_a_row_is_judged() -> None:
    row = figures.Row("x", memory_before=10, memory_after=90, descriptors_before=5)
    row.quiet = figures.Latency.of([1.0] * 2000)
    row.attacked = figures.Latency.of([1.0] * 1900 + [3.0] * 100)
    row.descriptors_after = 6
    row.judge_latency()
    row.judge_memory(32)
    row.judge_descriptors(spare=0)
    assert row.failures == [
        "p99 rose from 1.00 to 3.00 ms",
        "private memory rose from 10 to 90 MiB",
        "descriptors rose from 5 to 6",
    ]
    row.attacked = figures.Latency.of([2.0] * 2000)
    row.failed = 0
    row.judge_latency()
    row.judge_memory(100)
    row.judge_descriptors(1)
    assert row.failed == 0


def test_few_calls_are_not_judged() -> None:
    row = figures.Row("x", quiet=figures.Latency.of([1.0]), attacked=figures.Latency.of([9.0]))
    row.judge_latency()
    assert row.failed == 0


def test_parts_are_chosen_by_words() -> None:
    assert chosen([]) == list(PARTS)
    assert chosen(["forks", "channels"]) == ["forks", "channels"]
    with pytest.raises(SystemExit, match="no part's name holds nonsense"):
        chosen(["nonsense"])


CASES = [
    f"hostile {kind} {listeners[i % len(listeners)]}"
    for i, (kind, (listeners, _)) in enumerate(KINDS.items())
]
"""Each kind at one of its listeners."""
ROUNDS = {
    "strangers": CASES[: len(CASES) // 2],
    "intruders": CASES[len(CASES) // 2 :],
    "killed": ["killed", "interrupted", "stopped"],
    "shortages": ["without", "full arenas"],
    "groups": ["ranks", "hosts"],
    "regions": ["signals", "reconnects"],
    "crowds": ["forks", "channels", "soak", "weights"],
}


@pytest.mark.parametrize("parts", ROUNDS.values(), ids=ROUNDS)
def test_a_small_round(parts: list[str], tmp_path: Path) -> None:
    """In a process of its own: the campaign forks, and loads nothing that it does not need."""
    file = tmp_path / "rows.json"
    words = [word for part in parts for word in ("--only", part)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture", "--scale", "0.002", "--json", str(file), *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=200,
        check=False,
    )
    rows = json.loads(file.read_text())
    assert [row["failures"] for row in rows if row["failures"]] == []
    assert done.returncode == 0, done.stdout
    # Nothing was tried where the kernel gives this user no networks of its own, or has no device.
    perhaps = re.compile("soak|hosts cut off|.* verbs$")
    tried = [row for row in rows if not perhaps.match(row["torment"])]
    assert all(row["attempts"] for row in tried)
    assert all(row["attempts"] or row["note"] for row in rows)


def test_the_page_takes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "reliability.md"
    page.write_text(DOCS.read_text())
    monkeypatch.setattr("tests.torture.__main__.DOCS", page)
    for place in PLACES:
        write_docs([figures.Row(f"a torment of {place}", attempts=1234)], "the command", 7, place)
    text = page.read_text()
    assert text.count("`the command`, seed 7") == len(PLACES)
    for place in PLACES:
        assert f"| a torment of {place} | 1,234 |" in text
        write_docs([], "another", 8, place)
        assert f"a torment of {place}" not in page.read_text()
