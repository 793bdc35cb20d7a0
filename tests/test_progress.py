# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import pytest

from tensorwire import progress
from tensorwire.bench.harness import terminal
from tensorwire.bench.harness.schedule import Forecast


def test_lines_go_on_until_the_work_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    asked = 0
    enough = threading.Event()

    def state() -> str:
        nonlocal asked
        asked += 1
        if asked == 3:
            enough.set()
        return f"step {asked}"

    with progress.lines(state, seconds=0.01):
        assert enough.wait(20)
    told = capsys.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert lines[:2] == ["step 1", "step 2"]
    assert len(lines) == asked
    assert not [t for t in threading.enumerate() if t.name == "tensorwire-progress"]


def test_a_bar_without_a_terminal_is_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.01)
    said = ""
    with terminal.progress_bar() as update:
        update("tensorwire, round 1", 3, 40)
        while "tensorwire, round 1: 3 of 40\n" not in said:
            said += capsys.readouterr().err
        update("drawing", 0, 0)
        while not said.endswith("drawing\n"):
            said += capsys.readouterr().err
    assert said.startswith("starting\n")


def test_lines_tell_how_long_it_will_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.01)
    clock = iter((0.0, 100.0, 150.0))
    monkeypatch.setattr(terminal, "monotonic", lambda: next(clock))
    said = ""
    with terminal.progress_bar() as update:
        for done in (0, 10, 15):
            update("round 1", done, 40)
        while "round 1: 15 of 40, about 4 min left\n" not in said:
            said += capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "a few seconds"), (42, "about 42 s"), (100, "about 2 min"), (7300, "about 2.0 h")],
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert terminal.about(seconds) == text


def test_a_run_says_first_what_it_comes_to(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.announce("tensorwire bench rpc", Forecast(40, 100.0))
    assert capsys.readouterr().err == "tensorwire bench rpc: 40 visits, about 2 min\n"
