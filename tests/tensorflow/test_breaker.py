# SPDX-License-Identifier: Apache-2.0
"""When the plugin passes links by RDMA over, and for how long."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.tensorflow.unit import compiled

PROGRAM = """
#include <cstdio>
#include <cstring>

#include "breaker.h"

using tensorwire::Breaker;

// Each argument is something that happens; prints for how many seconds links are passed over then,
// and whether that is news.
int main(int count, char** words) {
  Breaker breaker;
  for (int i = 1; i < count; ++i) {
    if (!std::strcmp(words[i], "young")) breaker.died(std::chrono::seconds(29), "fault");
    if (!std::strcmp(words[i], "old")) breaker.died(std::chrono::seconds(30), "fault");
    if (!std::strcmp(words[i], "unreached")) breaker.unreached("no route");
    const auto left = breaker.until() - Breaker::Clock::now();
    const double seconds = std::chrono::duration<double>(left).count();
    std::printf("%.0f%s\\n", seconds < 0 ? 0.0 : seconds, breaker.news() ? " news" : "");
  }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("breaker"), "breaker.cc", PROGRAM)


@pytest.mark.parametrize(
    ("events", "pauses"),
    [
        ("young", ["0"]),
        ("young young", ["0", "20 news"]),
        ("old old old", ["0", "0", "0"]),
        ("young old young", ["0", "0", "0"]),
        ("unreached unreached unreached", ["10 news", "20", "40"]),
        ("unreached old unreached", ["10 news", "0", "10 news"]),
        (" ".join(["unreached"] * 12), ["10 news", *("20", "40", "80", "160"), *["300"] * 7]),
    ],
)
def test_pauses(program: Path, events: str, pauses: list[str]) -> None:
    done = subprocess.run(
        [program, *events.split()], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout.split("\n")[:-1] == pauses
