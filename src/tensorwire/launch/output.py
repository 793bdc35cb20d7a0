# SPDX-License-Identifier: Apache-2.0
"""Lines of many processes on one standard output, as fast as its reader takes them."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TextIO

from tensorwire.launch.jobs import Task

LOOK_SECONDS: Final = 0.2
"""How often signals and the time are looked at when nothing happens."""
PAUSE_SECONDS: Final = 0.01
COLOURS: Final = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
PIECE: Final = select.PIPE_BUF
"""What a pipe that takes something has room for."""

Waiting = Callable[[float], bool]
"""Called again and again while the reader takes nothing, with the seconds of that so far. False:
the reader is given up."""


def _for_ever(_seconds: float) -> bool:
    return True


class Prefixed:
    """Writes lines as ``[worker 0] line``, coloured on a terminal unless NO_COLOR is set. The bytes
    of a line stay as they are. When the reader has been given up, lines are dropped."""

    def __init__(self, tasks: Sequence[Task], waiting: Waiting = _for_ever) -> None:
        width = max(len(str(task)) for task in tasks)
        self._prefixes = {
            task: (f"[{task}]".ljust(width + 3), COLOURS[place % len(COLOURS)])
            for place, task in enumerate(tasks)
        }
        self._waiting = waiting
        self._given_up: set[str] = set()

    def __call__(self, task: Task, stream: str, line: bytes) -> None:
        sink = sys.stdout if stream == "stdout" else sys.stderr
        # There is none where it was closed before this process started.
        if sink is None or stream in self._given_up:
            return
        prefix, colour = self._prefixes[task]
        if sink.isatty() and "NO_COLOR" not in os.environ:
            prefix = f"\033[{colour}m{prefix}\033[0m"
        if not write(sink, prefix.encode() + line.rstrip(b"\r\n") + b"\n", self._waiting):
            self._given_up.add(stream)


def tell(text: str, waiting: Waiting = _for_ever) -> None:
    """What the launcher itself says, on standard error."""
    if sys.stderr is not None:
        write(sys.stderr, f"tensorwire: {text}\n".encode(), waiting)


def _descriptor(sink: TextIO) -> int | None:
    """None: it is a file of Python's alone. What stands in for a file, as in a notebook, may name
    the descriptor of that, and writes elsewhere."""
    try:
        return sink.fileno() if isinstance(sink, io.TextIOWrapper) else None
    except OSError:
        return None


def write(sink: TextIO, data: bytes, waiting: Waiting) -> bool:
    """Returns False when the reader was given up. Raises OSError, as BrokenPipeError where the
    reader has gone."""
    descriptor = _descriptor(sink)
    if descriptor is None:
        encoding = getattr(sink, "encoding", None) or "utf-8"
        text = data.decode(errors="replace")
        sink.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sink.flush()
        return True
    sink.flush()
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        return _write(descriptor, data, waiting)  # a socket cannot be opened once more
    # Opened once more so that no write waits: another process may take the room that was seen, and
    # a terminal may have less than it says. The given descriptor cannot be changed, as other
    # processes share it and count on waiting.
    try:
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # that of another user, as after su
        beside = os.get_blocking(descriptor)
        return (_write_beside if beside else _write)(descriptor, data, waiting)
    try:
        return _write(own, data, waiting)
    finally:
        os.close(own)


def _write(descriptor: int, data: bytes, waiting: Waiting) -> bool:
    room = select.poll()
    room.register(descriptor, select.POLLOUT)
    rest = memoryview(data)
    began = time.monotonic()
    while rest:
        taken = 0
        if room.poll(LOOK_SECONDS * 1000):
            with suppress(BlockingIOError):
                taken = os.write(descriptor, rest[:PIECE])
        if taken:
            rest, began = rest[taken:], time.monotonic()
            continue
        if not waiting(time.monotonic() - began):
            return False
        # One that says that it takes something, and does not, is not asked without pause.
        time.sleep(PAUSE_SECONDS)
    return True


def _write_beside(descriptor: int, data: bytes, waiting: Waiting) -> bool:
    """In a thread, which may wait in its write, and stays there when the reader is given up."""
    began = time.monotonic()
    failed: list[OSError] = []

    def work() -> None:
        nonlocal began
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest[:PIECE]) :]
                began = time.monotonic()
        except OSError as error:
            failed.append(error)

    writer = threading.Thread(target=work, name="tensorwire-output", daemon=True)
    writer.start()
    while True:
        writer.join(LOOK_SECONDS)
        if not writer.is_alive():
            break
        if not waiting(time.monotonic() - began):
            return False
    if failed:
        raise failed[0]
    return True
