# SPDX-License-Identifier: Apache-2.0
"""What signals to the launcher, and its end, do to a cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.launch.launcher import PATIENCE, gone, launcher, wait_for

from tensorwire import launch
from tensorwire.launch import Task, processes


def test_a_signal_that_comes_before_any_process(monkeypatch: pytest.MonkeyPatch) -> None:
    handled = processes._signals

    @contextmanager
    def early(take: Callable[[int], None]) -> Iterator[None]:
        with handled(take):
            signal.raise_signal(signal.SIGTERM)
            yield

    monkeypatch.setattr(processes, "_signals", early)
    ended = launch.run(launch.cluster("ps=1,worker=2"), ["sleep", "1000"], timeout=PATIENCE)
    assert ended == launch.Ended(128 + signal.SIGTERM, "ended by SIGTERM", signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_only_serving_processes_are_left(
    number: signal.Signals, tmp_path: Path
) -> None:
    """The worker has returned 0; ps goes on until it is killed."""
    script = f"""
    if [ {{job}} = worker ]; then until [ -e {tmp_path}/serving ]; do sleep 0.01; done; exit; fi
    trap 'echo told' TERM
    echo > {tmp_path}/serving
    while :; do sleep 0.01; done
    """

    def output(task: Task, stream: str, line: bytes) -> None:
        if line == b"told\n":  # the shell may say that its sleep was ended, too
            signal.raise_signal(number)

    ended = launch.run(
        launch.cluster("ps=1,worker=1"), ["sh", "-c", script], output=output, timeout=PATIENCE
    )
    why = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    assert ended == launch.Ended(128 + number, why, number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_sigterm_comes_before_sigkill(number: signal.Signals) -> None:
    script = f"""
    trap '' {number.name.removeprefix("SIG")}; trap 'echo told; exit 0' TERM
    echo ready
    while :; do sleep 0.01; done
    """
    seen: list[bytes] = []

    def output(task: Task, stream: str, line: bytes) -> None:
        if stream == "stdout":
            seen.append(line)
        if line == b"ready\n":
            for _ in range(2):
                signal.raise_signal(number)

    ended = launch.run(launch.cluster("w=1"), ["sh", "-c", script], output=output, timeout=PATIENCE)
    assert seen == [b"ready\n", b"told\n"]
    assert (ended.code, ended.signalled) == (128 + number, number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_who_serves_is_ended_once_the_others_have_heeded_a_signal(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not when the time for what was passed on is up."""
    escalated: list[bool] = []
    escalate = processes._Running._escalate

    def watched(running: processes._Running) -> None:
        escalated.append(True)
        escalate(running)

    monkeypatch.setattr(processes._Running, "_escalate", watched)
    name = number.name.removeprefix("SIG")
    script = f"""
    if [ {{job}} = worker ]; then trap 'exit 0' {name}
    else trap '' {name}; trap 'exit 0' TERM; fi
    echo ready
    while :; do sleep 0.01; done
    """
    ready: list[Task] = []

    def output(task: Task, stream: str, line: bytes) -> None:
        if line == b"ready\n":
            ready.append(task)
            if len(ready) == 2:
                signal.raise_signal(number)

    cluster = launch.cluster("ps=1,worker=1")
    ended = launch.run(
        cluster, ["sh", "-c", script], output=output, timeout=PATIENCE, grace=PATIENCE
    )
    assert (ended.code, ended.signalled) == (128 + number, number)
    assert not escalated


def test_a_signal_while_the_last_output_is_waited_for(tmp_path: Path) -> None:
    """A process that left its group writes once the task has been reaped."""
    script = f"""
    setsid sh -c 'echo > {tmp_path}/apart
      while kill -0 '$$' 2> /dev/null; do sleep 0.01; done; echo late' &
    until [ -e {tmp_path}/apart ]; do sleep 0.01; done
    """
    seen: list[bytes] = []

    def output(task: Task, stream: str, line: bytes) -> None:
        seen.append(line)
        signal.raise_signal(signal.SIGTERM)

    ended = launch.run(launch.cluster("w=1"), ["sh", "-c", script], output=output, timeout=PATIENCE)
    assert seen == [b"late\n"]
    assert ended == launch.Ended(128 + signal.SIGTERM, "ended by SIGTERM", signal.SIGTERM)


def test_a_signal_after_a_failure_leaves_the_code_of_that(tmp_path: Path) -> None:
    script = f"""
    if [ {{job}} = worker ]; then
      until [ -e {tmp_path}/serving ]; do sleep 0.01; done; exit 3
    fi
    trap 'echo told' TERM
    echo > {tmp_path}/serving
    while :; do sleep 0.01; done
    """

    def output(task: Task, stream: str, line: bytes) -> None:
        if line == b"told\n":
            signal.raise_signal(signal.SIGTERM)

    ended = launch.run(
        launch.cluster("ps=1,worker=1"), ["sh", "-c", script], output=output, timeout=PATIENCE
    )
    assert ended == launch.Ended(3, "worker 0 failed with exit code 3", signal.SIGTERM)


def test_a_signal_that_a_task_got_is_none_of_this_process() -> None:
    ended = launch.run(launch.cluster("w=1"), ["sh", "-c", "kill -TERM $$"], timeout=PATIENCE)
    assert ended == launch.Ended(128 + signal.SIGTERM, "w 0 was ended by SIGTERM")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on(number: signal.Signals, tmp_path: Path) -> None:
    got, ready = tmp_path / "got", tmp_path / "ready"
    name = number.name.removeprefix("SIG")
    script = (
        f"trap 'echo $0 > {got}{{index}}; exit 0' {name}; echo > {ready}{{index}};"
        "while :; do sleep 0.05; done"
    )
    with launcher(script) as process:
        for index in range(2):
            wait_for(Path(f"{ready}{index}"))
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number
    for index in range(2):
        assert Path(f"{got}{index}").exists()


def test_nothing_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with launcher(f"echo $$ > {pid}{{index}}; exec sleep 1000") as process:
        pids = [int(wait_for(Path(f"{pid}{index}"))) for index in range(2)]
        process.kill()
        process.wait(PATIENCE)
    assert all(gone(each) for each in pids)


def test_nothing_that_a_task_has_started_outlives_a_launcher_that_is_killed(
    tmp_path: Path,
) -> None:
    pid = tmp_path / "pid"
    # The one that is started waits for nothing and hears nothing of its parent's end.
    script = f"trap '' HUP TERM; sh -c 'echo $$ > {pid}{{index}}; exec sleep 1000' & wait"
    pids: list[int] = []
    try:
        with launcher(script) as process:
            pids += [int(wait_for(Path(f"{pid}{index}"))) for index in range(2)]
            process.kill()
            process.wait(PATIENCE)
        assert all(gone(each) for each in pids)
    finally:
        for each in pids:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
