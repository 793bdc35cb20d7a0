# SPDX-License-Identifier: Apache-2.0
"""Starting processes that take part in a measurement, and ending them whatever happens."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import MappingProxyType
from typing import IO, Any

from tensorwire import signals
from tensorwire.bench.harness.control import AgentError, Control, LostError
from tensorwire.launch import leftovers

START_SECONDS = 60.0
"""Importing a large library on a busy machine takes a while."""
VISIT_FACTOR = 20.0
"""A visit that takes this many times as long as it should is given up."""
STOP_SECONDS = 5.0
LOOK_SECONDS = 0.2
"""How often a start that takes long is checked for a process that has died."""
ERROR_LINES = 4

Hello = tuple[Control, dict[str, Any]]
Others = Mapping[Control, str]
"""Conversations with whole hosts, each with its name, which have nothing to say meanwhile."""
NO_OTHERS: Others = MappingProxyType({})


@contextmanager
def started(commands: Callable[[str], list[list[str]]], agents: int) -> Iterator[list[Hello]]:
    """Runs ``commands(path)`` and yields the ``agents`` conversations that their processes open at
    that unix socket, each with its first message, in the order of the messages' ``role``.

    The processes are told to end by closing their conversations; those that do not are killed, and
    leave no sockets either.
    An AgentError that passes through gets the last lines of what they wrote to their output.
    """
    with tempfile.TemporaryFile() as log:
        try:
            with ExitStack() as stack:
                folder = stack.enter_context(signals.folder("tensorwire-bench-"))
                path = os.path.join(folder, "control")
                listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                try:
                    listener.bind(path)
                except OSError as error:
                    raise AgentError(
                        f"no socket can be at {path}: {error}. TMPDIR sets another folder, whose "
                        "path has to be short"
                    ) from error
                listener.listen(agents)
                processes = [stack.enter_context(_process(argv, log)) for argv in commands(path)]
                found = [_accept(stack, listener, processes) for _ in range(agents)]
                yield sorted(found, key=lambda hello: str(hello[1]["role"]))
        except AgentError as error:
            # Only now have the processes ended, and written all that they had to say.
            raise AgentError(f"{error}{_tail(log)}") from error
        finally:
            leftovers.remove()


@contextmanager
def resting(
    controls: Sequence[Control],
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Agents on this host that are stopped (SIGSTOP), but for the time within the contexts that the
    yielded function makes. For those that would use CPU while others are measured."""
    pids = [_pid(control) for control in controls]

    def signal_all(number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):  # what it has said before tells why
                os.kill(pid, number)

    @contextmanager
    def awake() -> Iterator[None]:
        signal_all(signal.SIGCONT)
        try:
            yield
        finally:
            signal_all(signal.SIGSTOP)

    signal_all(signal.SIGSTOP)
    try:
        yield awake
    finally:
        signal_all(signal.SIGCONT)


def _pid(control: Control) -> int:
    """Of the process at the other end of a unix socket."""
    ids = struct.Struct("3i")  # process, user, group: unix(7), SO_PEERCRED
    told = control.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, ids.size)
    return int(ids.unpack(told)[0])


def tell(controls: Sequence[Control], message: dict[str, Any]) -> None:
    """Says it to each of these agents. Where one is gone, those after it are told nothing: what it
    has said before, or its end, is what ``expect`` hears next, and tells why."""
    with suppress(OSError):
        for control in controls:
            control.send(message)


def expect(control: Control, timeout: float, *others: Control) -> dict[str, Any]:
    """The agent's next message. AgentError when it reports an error, is silent or gone, or when one
    of ``others``, which have nothing to say meanwhile, reports an error or is gone."""
    speaking, _, _ = select.select([control, *others], [], [], timeout)
    if not speaking:
        raise AgentError("no answer in time")
    for speaker in sorted(speaking, key=lambda speaker: speaker is control):
        message = _heard(speaker, "one of its processes")
        if speaker is not control:
            raise AgentError(f"one of its processes spoke out of turn: {message}")
    return message


def expect_all(
    controls: Sequence[Control], timeout: float, name: str, others: Others = NO_OTHERS
) -> list[dict[str, Any]]:
    """The next message of each agent. AgentError when one of them reports an error or is gone, even
    while others are silent, or when one is silent for that long; LostError when one of ``others``
    is gone. name: of an agent, by its place, as of str.format."""
    answers: dict[Control, dict[str, Any]] = {}
    end = time.monotonic() + timeout
    while waiting := [control for control in controls if control not in answers]:
        left = max(end - time.monotonic(), 0)
        speaking, _, _ = select.select([*others, *waiting], [], [], left)
        if not speaking:
            silent = " and ".join(name.format(controls.index(control)) for control in waiting)
            raise AgentError(f"no answer in time from {silent}")
        for speaker in speaking:
            if speaker in others:
                raise LostError(f"{others[speaker]} is lost")
            answers[speaker] = _heard(speaker, name.format(controls.index(speaker)))
    return [answers[control] for control in controls]


def _heard(speaker: Control, who: str) -> dict[str, Any]:
    try:
        message = speaker.receive()
    except OSError as error:
        raise AgentError(f"{who} is gone ({error})") from error
    if not message:
        raise AgentError(f"{who} has ended")
    if "error" in message:
        raise AgentError(message["error"])
    return message


@contextmanager
def _process(argv: list[str], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    # A session of its own: Ctrl-C reaches only the process that can end all of them in order.
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        # What it has started may outlive it. While any of that lives, its number is no other's;
        # where none does, another process could have got it only in the instant since the wait.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _accept(
    stack: ExitStack, listener: socket.socket, processes: list[subprocess.Popen[bytes]]
) -> Hello:
    listener.settimeout(LOOK_SECONDS)
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError as error:
            codes = [code for process in processes if (code := process.poll()) is not None]
            if codes or time.monotonic() > end:
                raise AgentError(f"its processes did not start (exit codes {codes})") from error
            continue
        control = Control(connection)
        stack.callback(control.close)
        return control, expect(control, START_SECONDS)


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()[-ERROR_LINES:]
    return "".join(f"\n    {line}" for line in lines)
