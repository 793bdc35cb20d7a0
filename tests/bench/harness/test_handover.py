# SPDX-License-Identifier: Apache-2.0
"""What comes of figures whose reader has gone."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

import pytest

from tensorwire import signals
from tensorwire.bench.harness.environment import describe
from tensorwire.bench.harness.handover import hand_over, measured
from tensorwire.bench.harness.report import Layout
from tensorwire.bench.harness.rows import Report, Row
from tensorwire.bench.harness.schedule import Forecast, Progress
from tensorwire.bench.harness.suite import Suite
from tensorwire.bench.harness.terminal import progress_bar
from tensorwire.bench.suites.rpc.suite import LAYOUT

ROWS = [Row("grpcio", "grpc", "request", 8)]
INTERRUPTED = {**describe({}, {"grpcio": "peer"}), "interrupted": True}


class Closing:
    """A suite in whose run the terminal is closed."""

    name = "closing"
    layout: Layout = LAYOUT

    def __init__(self, screen: Screen) -> None:
        self.screen = screen

    def forecast(self) -> Forecast:
        return Forecast()

    def run(self, progress: Progress) -> tuple[Report, bool]:
        progress("grpcio", 1, 2)
        self.screen.close()
        with suppress(SystemExit):  # as a tour, which keeps the figures
            signal.raise_signal(signal.SIGHUP)
        return Report("rpc", "grpcio", INTERRUPTED, ROWS), True


class Screen:
    """A terminal on which both standard streams are."""

    def __init__(self) -> None:
        self._master, self.slave = os.openpty()

    def stream(self) -> TextIO:
        return open(self.slave, "w", buffering=1, closefd=False)

    def close(self) -> None:
        if self._master >= 0:
            os.close(self._master)
            self._master = -1


@contextmanager
def on_screen() -> Iterator[Screen]:
    """Not a fixture: pytest puts its own streams there between that and the test."""
    found = Screen()
    out, err = found.stream(), found.stream()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        yield found
    found.close()
    for each in (out, err):
        with suppress(OSError):
            each.close()
    os.close(found.slave)


@pytest.mark.parametrize("json_", [False, True])
def test_a_terminal_that_is_closed_costs_no_figures(json_: bool, tmp_path: Path) -> None:
    drawn: list[Path] = []

    def draw(report: Report, path: Path) -> None:
        drawn.append(path)

    output, picture = tmp_path / "figures.json", tmp_path / "figures.svg"
    with on_screen() as screen, pytest.raises(SystemExit) as ended, signals.ending():
        measured(cast(Suite, Closing(screen)), output, json_, picture, draw)
    assert ended.value.code == 129
    assert len(json.loads(output.read_text())["rows"]) == 1
    assert drawn == [picture]


def test_a_bar_on_a_terminal_that_is_closed_hides_no_error_of_its_block() -> None:
    def work(screen: Screen) -> NoReturn:
        with progress_bar() as update:
            update("grpcio", 1, 2)
            screen.close()
            with suppress(OSError):
                print("ended", file=sys.stderr)  # as who is told of a signal does
            raise BrokenPipeError("its own")

    with on_screen() as screen:
        streams = (sys.stdout, sys.stderr)
        with pytest.raises(BrokenPipeError, match="its own"):
            work(screen)
        assert (sys.stdout, sys.stderr) == streams


def test_what_nobody_reads_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    reader, writer = os.pipe()
    os.close(reader)
    report = Report("rpc", "grpcio", {"interrupted": False}, ROWS)
    with suppress(BrokenPipeError), open(writer, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(BrokenPipeError):
            hand_over(report, LAYOUT, None, True, tmp_path, lambda _, path: drawn.append(path))
    assert drawn == [tmp_path]


@pytest.mark.parametrize("buffering", [1, -1])  # printing fails, or what flushes it
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, "tensorwire: interrupted\n"),
        (signal.SIGTERM, "tensorwire: ended by SIGTERM\n"),
    ],
)
def test_a_run_that_was_ended_and_whose_reader_has_gone_ends_as_it_was_ended(
    number: signal.Signals,
    said: str,
    buffering: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def command() -> None:
        with signals.ending():
            with suppress(KeyboardInterrupt, SystemExit):  # as a tour, which keeps the figures
                signal.raise_signal(number)
            hand_over(Report("rpc", "grpcio", INTERRUPTED, ROWS), LAYOUT, None, True, None)

    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=buffering) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as ended:
            command()
    assert ended.value.code == 128 + number
    assert capsys.readouterr().err == said


def test_figures_that_find_no_space_are_told_of_after_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        with signals.ending():
            hand_over(Report("rpc", "grpcio", INTERRUPTED, ROWS), LAYOUT, None, True, None)

    with open("/dev/full", "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as ended:
            command()
    assert ended.value.code == 130
    assert "No space left on device" in capsys.readouterr().err
