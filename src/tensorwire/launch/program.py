# SPDX-License-Identifier: Apache-2.0
"""One program: below this process, or in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, NoReturn, TextIO

from tensorwire import signals


class NotStartedError(RuntimeError):
    """A program cannot be started. Its text says which one, and why."""


class Finished(NamedTuple):
    """code: the exit code, or 128 + the signal that ended it."""

    pid: int
    code: int


def follow(
    command: Sequence[str], environment: Mapping[str, str], *, to_stderr: bool = False
) -> Finished:
    """Runs a program to its end, with an environment that is added to that of this process. It is
    told of SIGTERM and SIGHUP, as the terminal tells it of Ctrl-C, and decides itself when it ends.

    to_stderr: what it prints goes to standard error, as standard output is for something else.
    Raises NotStartedError.
    """
    output: TextIO | int | None = None
    if to_stderr:
        output = subprocess.DEVNULL if sys.stderr is None else sys.stderr
    process = None
    try:
        with _telling(command[0]), signals.held():
            process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=output)
    except (KeyboardInterrupt, SystemExit) as told:
        if process is None:
            raise
        if isinstance(told, SystemExit):
            process.terminate()
    while (code := _ended(process)) is None:
        pass
    return Finished(process.pid, code if code >= 0 else 128 - code)


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Its return code; None where a signal came first."""
    try:
        return process.wait()
    except KeyboardInterrupt:  # the program was told, too
        return None
    except SystemExit:  # signals.ending() makes it of SIGTERM and SIGHUP
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
