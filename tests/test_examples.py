# SPDX-License-Identifier: Apache-2.0
"""The programs in examples/ run, at sizes that take no time, and say what they did."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LIMIT_SECONDS = 50


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments]


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        command(name, *arguments), capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_says_what_it_does_and_is_linked(example: Path) -> None:
    assert "usage:" in run(example.stem, "--help")
    page = ROOT / "docs" / "tutorials" / f"{example.stem}.md"
    assert f"examples/{example.name}" in page.read_text()


def test_actor_learner() -> None:
    said = run(
        "actor_learner",
        "--weights",
        "4M",
        "--actors",
        "2",
        "--pulls",
        "2",
        "--library",
        "both",
    )
    assert "tensorwire: calls went by shm to" in said
    assert "crowded" not in said
    assert "grpcio: calls went by grpc" in said
    # Two actors push eight times each, and two pushes are a step.
    assert len(re.findall(r"^\w+: 8 versions, [\d.]+ s in all$", said, re.MULTILINE)) == 2
    assert re.search(r"^tensorwire took .* and grpcio .*: [\d.]+x$", said, re.MULTILINE)


def test_model_server() -> None:
    said = run("model_server", "--requests", "5", "--clients", "2", "--library", "both")
    assert "tensorwire: calls went by shm to" in said
    assert "grpcio: calls went by grpc" in said
    assert len(re.findall(r"^\w+: 10 predictions for 1\.05 MB each: p50", said, re.MULTILINE)) == 2
    assert re.search(r"^a call takes grpcio [\d.]+ times as long$", said, re.MULTILINE)


def test_streaming() -> None:
    said = run("streaming", "--frames", "12", "--look-ms", "5", "--library", "both")
    assert "tensorwire: frames went by shm to" in said
    assert "grpcio: frames went by grpc" in said
    ahead = re.search(r"^tensorwire: the camera was at most (\d+) frames ahead", said, re.MULTILINE)
    # 16 MiB are under way, and one more; another one is being made, and one looked at.
    assert ahead is not None
    assert int(ahead[1]) <= 6


def test_actors_join_a_learner_and_ctrl_c_ends_it() -> None:
    alone = command("actor_learner", "--actors", "0", "--weights", "1M")
    with subprocess.Popen(
        alone, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as learner:
        try:
            assert learner.stdout is not None
            assert learner.stderr is not None
            address = learner.stdout.readline().split()[-1]
            run("actor_learner", "--join", address)
            learner.send_signal(signal.SIGINT)
            assert learner.wait(LIMIT_SECONDS) == 130
            assert learner.stderr.read() == ""
        finally:
            learner.kill()
