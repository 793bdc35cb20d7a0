# SPDX-License-Identifier: Apache-2.0
"""The course of a run that a signal ends."""

from __future__ import annotations

import signal

import pytest

from tensorwire import signals
from tensorwire.bench.harness.schedule import Course, silent, tour


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_visits_before_a_signal_stay_and_the_command_ends_with_its_code(
    number: signal.Signals, code: int
) -> None:
    course, done = Course(), []

    def visit(turn: int) -> None:
        if turn == 2:
            signal.raise_signal(number)
        done.append(turn)

    def run() -> None:
        with signals.ending():
            tour(range(5), 5, str, visit, course, silent)
            assert course.interrupted
            raise KeyboardInterrupt  # as who hands over does, after the figures

    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == code
    assert done == [0, 1]
    assert course.notes == ["interrupted after 2 of 5 visits"]


def test_a_visit_that_ends_the_command_by_itself_does() -> None:
    def visit(turn: int) -> None:
        raise SystemExit(2)

    with pytest.raises(SystemExit) as ended:
        tour(range(5), 5, str, visit, Course(), silent)
    assert ended.value.code == 2
