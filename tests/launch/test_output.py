# SPDX-License-Identifier: Apache-2.0
"""What lines of processes are written to, however slowly it is read."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launch.launcher import LAUNCHER, PATIENCE, gone, launcher, wait_for

from tensorwire import launch
from tensorwire.launch import output


class StandIn:
    """As of a notebook: it has the descriptor of the file that it stands in for."""

    encoding = "latin-1"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        text.encode(self.encoding)
        self.text += text

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return 1


def test_output_goes_to_what_stands_in_for_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    file = StandIn()
    monkeypatch.setattr(sys, "stdout", file)
    tasks = launch.cluster("w=1").tasks
    launch.Prefixed(tasks)(tasks[0], "stdout", "\u2588\n".encode())
    assert file.text == "[w 0] \\u2588\n"


def give_up(_seconds: float) -> bool:
    return False


def test_a_write_never_waits_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may say that it takes something, and then takes a part of that only."""
    monkeypatch.setattr(output, "LOOK_SECONDS", 0.0)
    for length in range(1, 65):
        reader, writer = os.openpty()
        with open(writer, "w") as sink:
            while output.write(sink, b"y" * length + b"\n", give_up):
                pass
            assert sink.isatty()
        os.close(reader)


def test_a_write_does_not_wait_where_another_process_took_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()

    class Room:
        """Sees room that is gone when it has been seen."""

        def register(self, _descriptor: int, _events: int) -> None: ...

        def poll(self, _milliseconds: float) -> bool:
            return True

    monkeypatch.setattr("select.poll", Room)
    with open(writer, "w") as sink:
        while output.write(sink, b"y" * 99 + b"\n", give_up):
            pass
        assert os.get_blocking(writer)
    with open(reader, "rb") as file:
        written = file.read()
    assert len(written) > 99
    assert set(written.splitlines()[:-1]) == {b"y" * 99}


@pytest.fixture
def of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output cannot be opened once more, as after su."""
    opened = os.open

    def refuse(path: str, *more: int) -> int:
        if str(path).startswith("/proc/self/fd/"):
            raise PermissionError(13, "Permission denied")
        return opened(path, *more)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.usefixtures("of_another_user")
@pytest.mark.parametrize("make", [os.pipe, os.openpty])
def test_a_write_waits_for_no_file_of_another_user(
    make: Callable[[], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "LOOK_SECONDS", 0.05)
    before = set(threading.enumerate())
    reader, writer = make()
    with open(writer, "w") as sink:
        while output.write(sink, b"y" * 99 + b"\n", give_up):
            pass
        assert os.get_blocking(writer)
        os.close(reader)  # ends the write that is left
        for thread in set(threading.enumerate()) - before:
            thread.join()


@pytest.mark.usefixtures("of_another_user")
def test_a_file_of_another_user_gets_all_of_it() -> None:
    reader, writer = os.pipe()
    text = b"".join(b"%d\n" % number for number in range(50_000))
    read: list[bytes] = []

    def take() -> None:
        with open(reader, "rb") as file:
            read.append(file.read())

    taking = threading.Thread(target=take)
    taking.start()
    with open(writer, "w") as sink:
        assert output.write(sink, text, lambda _: True)
    taking.join()
    assert read == [text]


@pytest.mark.usefixtures("of_another_user")
def test_a_file_of_another_user_whose_reader_has_gone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as sink, pytest.raises(BrokenPipeError):
        output.write(sink, b"one\n", give_up)


def test_output_needs_no_encoding() -> None:
    line = "loss \u2588\n".encode() + b"\xff\n"
    script = f"printf '{''.join(f'{chr(92)}{byte:03o}' for byte in line)}'"
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    with launcher(script, stdout=subprocess.PIPE, env=environment) as process:
        written, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    lines = [
        prefix + each for prefix in (b"[worker 0] ", b"[worker 1] ") for each in line.splitlines()
    ]
    assert sorted(written.splitlines()) == sorted(lines)


def test_standard_output_may_be_closed(tmp_path: Path) -> None:
    script = f"echo one; echo two; echo > {tmp_path}/trained{{index}}"
    command = [sys.executable, "-c", LAUNCHER, script]
    closed = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command]
    assert subprocess.run(closed, timeout=2 * PATIENCE, check=False).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"trained0", "trained1"}


def of_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    return reader, writer


@pytest.mark.parametrize("make", [of_pipe, os.openpty])
def test_a_signal_ends_all_although_nobody_reads(
    make: Callable[[], tuple[int, int]], tmp_path: Path
) -> None:
    reader, writer = make()
    try:
        with launcher(f"echo $$ > {tmp_path}/pid{{index}}; exec yes", stdout=writer) as process:
            pids = [int(wait_for(tmp_path / f"pid{index}")) for index in range(2)]
            wait_until_full(writer)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 128 + signal.SIGTERM
        assert all(gone(each) for each in pids)
    finally:
        os.close(reader)
        os.close(writer)


def wait_until_full(writer: int) -> None:
    """Until a file takes no more output."""
    room = select.poll()
    room.register(writer, select.POLLOUT)
    end = time.monotonic() + PATIENCE
    while room.poll(0):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_no_output_is_lost_when_the_reader_pauses(tmp_path: Path) -> None:
    reader, writer = of_pipe()
    with launcher(f"seq 50000; echo > {tmp_path}/done{{index}}", stdout=writer) as process:
        wait_until_full(writer)
        os.close(writer)
        with open(reader, "rb") as file:
            lines = file.read().splitlines()
        assert process.wait(PATIENCE) == 0
    for index in range(2):
        prefix = f"[worker {index}] ".encode()
        found = [int(line.removeprefix(prefix)) for line in lines if line.startswith(prefix)]
        assert found == list(range(1, 50001))
