# SPDX-License-Identifier: Apache-2.0
"""Processes that take part in a measurement: errors come with their cause, and nothing stays."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path

import pytest

from tensorwire.bench.harness import processes
from tensorwire.bench.harness.control import AgentError, Control
from tensorwire.bench.harness.processes import Hello, expect, expect_all, resting, started
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.suite import Session
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.queue import suite as queue
from tensorwire.bench.suites.remote import suite as remote
from tensorwire.bench.suites.rpc import pair as rpc
from tensorwire.bench.suites.tensorflow import cluster as tensorflow

HELLO = """
import sys
from tensorwire.bench.harness.control import conversation
with conversation(sys.argv[1]) as control:
    control.send({"role": sys.argv[2]})
"""
TALK = HELLO + "    while message := control.receive():\n        "


def commands(*programs: str) -> Callable[[str], list[list[str]]]:
    def build(path: str) -> list[list[str]]:
        return [
            [sys.executable, "-c", program, path, f"role{index}"]
            for index, program in enumerate(programs)
        ]

    return build


def begin(*programs: str) -> AbstractContextManager[list[Hello]]:
    return started(commands(*programs), len(programs))


def alive(mark: Path) -> bool:
    pid = int(mark.read_text())
    return Path(f"/proc/{pid}").exists()


def test_conversations_come_in_the_order_of_roles() -> None:
    echo = TALK + "control.send(message)"
    with begin(echo, echo) as ((first, hello), (second, _)):
        assert hello["role"] == "role0"
        second.send({"x": 2})
        assert expect(second, 30, first) == {"x": 2}


def await_state(pids: list[int], states: str) -> None:
    """As proc(5) calls them: a signal takes effect when its process gets to run."""
    for pid in pids:
        end = time.monotonic() + 30
        while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in states:
            assert time.monotonic() < end
            time.sleep(0.001)


def test_agents_that_spin_are_stopped_but_for_visits() -> None:
    echo = TALK.replace('"role"', '"pid": __import__("os").getpid(), "role"')
    with begin(*[echo + "control.send(message)"] * 2) as hellos:
        controls, pids = [each for each, _ in hellos], [int(hello["pid"]) for _, hello in hellos]

        def answer(number: int) -> None:
            for control in controls:
                control.send({"x": number})
            assert expect_all(controls, 30, "{}") == [{"x": number}] * 2

        answer(1)
        with resting(controls) as awake:
            await_state(pids, "T")
            for number in (2, 3):
                with awake():
                    await_state(pids, "RSD")
                    answer(number)
                await_state(pids, "T")
        answer(4)


def test_a_visit_to_agents_that_are_gone_ends() -> None:
    with begin(TALK + "raise SystemExit") as ((control, _),), resting([control]) as awake, awake():
        control.send({"x": 1})
        with pytest.raises(AgentError, match="has ended"):
            expect(control, 30)


def rpc_pair(one: Control, other: Control) -> Session:
    return rpc.Pair(one, other, "tcp", "", nullcontext)


def remote_pair(one: Control, other: Control) -> Session:
    return remote.Pair(one, other, "tcp", "")


def queue_of(one: Control, other: Control) -> Session:
    return queue._Running(one, "tcp", "")


def tensorflow_cluster(one: Control, other: Control) -> Session:
    return tensorflow.Cluster(Entry("grpc", "grpc"), [one, other], [])


@pytest.mark.parametrize("session", [rpc_pair, remote_pair, queue_of, tensorflow_cluster])
def test_agents_that_ended_between_two_visits_are_an_error_of_their_own(
    session: Callable[[Control, Control], Session],
) -> None:
    """Nothing that would end the run of the others."""
    with ExitStack() as stack:
        ends = []
        for _ in range(2):
            here, there = socket.socketpair(socket.AF_UNIX)
            ends.append(stack.enter_context(closing(Control(here))))
            there.close()
        with pytest.raises(AgentError, match=r"has ended|is gone"):
            session(*ends).visit(Work("request", 8), 0.1)


def ask_last(*programs: str, wait_for: int = -1, seconds: float = 30) -> dict[str, object]:
    """Speaks to the last agent, and waits for an answer of one of them."""
    with begin(*programs) as hellos:
        controls = [control for control, _ in hellos]
        controls[-1].send({"x": 1})
        awaited = controls.pop(wait_for)
        return expect(awaited, seconds, *controls)


def test_an_exception_of_an_agent_is_reported_with_its_output() -> None:
    wrong = TALK + "raise ValueError('no such thing')"
    with pytest.raises(AgentError, match=r"ValueError: no such thing[\s\S]*no such thing"):
        ask_last(wrong)


def test_an_agent_that_dies_while_another_is_awaited_is_noticed() -> None:
    dies = TALK + "import os; os._exit(3)"
    with pytest.raises(AgentError, match="has ended"):
        ask_last(TALK + "pass", dies, wait_for=0)


def ask_all(*programs: str, seconds: float = 30) -> list[dict[str, object]]:
    with begin(*programs) as hellos:
        controls = [control for control, _ in hellos]
        for place, control in enumerate(controls):
            control.send({"place": place})
        return expect_all(controls, seconds, "agent {}")


ECHO = TALK + "control.send(message)"


def test_answers_of_all_come_in_the_order_of_agents() -> None:
    assert ask_all(ECHO, ECHO, ECHO) == [{"place": 0}, {"place": 1}, {"place": 2}]


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import os; os._exit(3)", "agent 1 has ended"),
        ("raise ValueError('no such thing')", "ValueError: no such thing"),
    ],
)
def test_one_that_fails_is_told_while_others_are_silent(program: str, why: str) -> None:
    with pytest.raises(AgentError, match=why):
        ask_all(TALK + "pass", TALK + program)


def test_those_that_are_silent_are_named() -> None:
    with pytest.raises(AgentError, match=r"no answer in time from .*agent 1 and agent 2"):
        ask_all(ECHO, TALK + "pass", TALK + "pass", seconds=1)


def test_silence_has_an_end() -> None:
    with pytest.raises(AgentError, match="no answer in time"):
        ask_last(TALK + "pass", seconds=0.01)


def test_an_agent_that_speaks_out_of_turn_is_an_error() -> None:
    chatty = TALK + "control.send({'tells': 'more'})"
    with pytest.raises(AgentError, match="out of turn"):
        ask_last(TALK + "pass", chatty, wait_for=0)


def test_a_process_that_cannot_start_is_noticed_at_once() -> None:
    broken = "import sys; print('broken', file=sys.stderr); sys.exit(4)"
    with pytest.raises(AgentError, match=r"did not start \(exit codes \[4\]\)[\s\S]*broken"):
        ask_last(broken)


def test_a_folder_whose_path_is_too_long_is_told_with_what_sets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(AgentError, match=rf"at {folder}/.*TMPDIR"), begin(ECHO):
        pass


def test_a_process_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.01)
    mark = tmp_path / "pid"
    stubborn = (
        "import os, pathlib, signal\n"
        f"pathlib.Path({str(mark)!r}).write_text(str(os.getpid()))\n"
        + HELLO
        + "    signal.pause()\n"
    )
    with begin(stubborn):
        assert alive(mark)
    assert not alive(mark)


def test_what_a_process_that_is_dead_has_started_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    dies = f"sleep 25 & echo $! >{mark}; kill -9 $$"
    with (tmp_path / "log").open("wb") as log, ExitStack() as stack:
        with processes._process(["bash", "-c", dies], log) as process:
            process.wait()
            death = os.pidfd_open(int(mark.read_text()))
            stack.callback(os.close, death)
        assert select.select([death], [], [], 10)[0] == [death]


SERVES = """
from concurrent.futures import ThreadPoolExecutor
import tensorwire
server = tensorwire.server(ThreadPoolExecutor(1))
server.add_insecure_port("127.0.0.1:0")
server.start()
"""


def test_what_is_killed_leaves_no_socket(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folders["XDG_RUNTIME_DIR"]))
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.01)
    with begin(SERVES + HELLO + "    import signal; signal.pause()"):
        assert [path.name[:16] for path in folders["XDG_RUNTIME_DIR"].iterdir()] == [
            "tensorwire-link-"
        ]
    assert list(folders["XDG_RUNTIME_DIR"].iterdir()) == []


BENCH = """
import signal, sys
from contextlib import nullcontext
from tensorwire.bench.harness.processes import resting, started
def commands(path):
    return [[sys.executable, "-c", sys.argv[1], path, str(role)] for role in range(2)]
with started(commands, 2) as hellos:
    controls = [control for control, _ in hellos]
    with resting(controls) if sys.argv[2] == "stopped" else nullcontext():
        print("started", flush=True)
        signal.pause()
"""
MARKED = "import os, pathlib\npathlib.Path(f'{os.getpid()}.pid').touch()\n" + TALK + "pass"


@pytest.mark.parametrize("agents", ["awake", "stopped"])
def test_agents_end_with_the_bench(tmp_path: Path, agents: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BENCH, MARKED, agents],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as bench:
        assert bench.stdout is not None
        assert bench.stdout.readline() == b"started\n"
        pids = [int(mark.stem) for mark in tmp_path.glob("*.pid")]
        deaths = [os.pidfd_open(pid) for pid in pids]
        if agents == "stopped":
            await_state(pids, "T")
        bench.kill()
    try:
        assert len(deaths) == 2
        for death in deaths:
            assert select.select([death], [], [], 30)[0] == [death]
    finally:
        for death in deaths:
            os.close(death)
