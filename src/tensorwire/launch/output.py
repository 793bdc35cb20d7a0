# SPDX-License-Identifier: Apache-2.0
"""Lines of many processes on one standard output, as fast as its reader takes them."""

from __future__ import annotations

import io
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TextIO

from tensorwire.launch.jobs import Task

LOOK_SECONDS: Final = 0.2
"""How often signals and the time are looked at when nothing happens."""
COLOURS: Final = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
# What a file takes without waiting when it says that it takes something: a pipe has room for so
# much then, and a terminal for what these bytes become there.
PIECE_OF_PIPE: Final = select.PIPE_BUF
PIECE_OF_TERMINAL: Final = 128

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
    piece = PIECE_OF_TERMINAL if sink.isatty() else PIECE_OF_PIPE
    room = select.poll()
    room.register(descriptor, select.POLLOUT)
    rest = memoryview(data)
    while rest:
        began = time.monotonic()
        while not room.poll(LOOK_SECONDS * 1000):
            if not waiting(time.monotonic() - began):
                return False
        # Where another process has taken the room meanwhile.
        with suppress(BlockingIOError):
            rest = rest[os.write(descriptor, rest[:piece]) :]
    return True
