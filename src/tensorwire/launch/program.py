# SPDX-License-Identifier: Apache-2.0
"""One program: below this process, or in its place."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, NoReturn


class NotStartedError(RuntimeError):
    """A program cannot be started. Its text says which one, and why."""


class Finished(NamedTuple):
    """code: the exit code, or 128 + the signal that ended it."""

    pid: int
    code: int


def follow(command: Sequence[str], environment: Mapping[str, str]) -> Finished:
    """Runs a program to its end, with an environment that is added to that of this process. It is
    told of SIGTERM, as the terminal tells it of Ctrl-C, and decides itself when it ends.

    Raises NotStartedError.
    """
    with _telling(command[0]):
        process = subprocess.Popen(command, env={**os.environ, **environment})
    while (code := _ended(process)) is None:
        pass
    return Finished(process.pid, code if code >= 0 else 128 - code)


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Its return code; None where a signal came first."""
    try:
        return process.wait()
    except KeyboardInterrupt:  # the program was told, too
        return None
    except SystemExit:  # signals.ending() makes it of SIGTERM
        process.terminate()
        return None


def become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """A program takes the place of this one. Raises NotStartedError."""
    with _telling(command[0]):
        os.execvpe(command[0], list(command), {**os.environ, **environment})


@contextmanager
def _telling(program: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotStartedError(f"cannot run {program!r}: {error.strerror}") from None
