# SPDX-License-Identifier: Apache-2.0
"""How Ctrl-C, SIGTERM, a closed terminal and a full disk end a command: in order, with a word and
an exit code."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Final

TOLD: Final = (signal.SIGTERM, signal.SIGHUP)
"""What asks a process to end, beside Ctrl-C: a batch system or a service manager, and a terminal
that is closed."""
TERMINATED: Final = frozenset(128 + number for number in TOLD)
"""The codes with which these end a command."""


class Terminated(SystemExit):
    """What SIGTERM and SIGHUP raise: a program that is run here and ends by itself raises a
    SystemExit that is none of these."""


@contextmanager
def ending() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP raise Terminated with code 143 and 129, so that processes and
    folders that were made are cleared away; KeyboardInterrupt becomes SystemExit with code 130, and
    an OSError, such as that of standard output that cannot be written to, with code 1; where one of
    the three came before, with its code. SIGHUP stays ignored where it is (nohup). In the main
    thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def terminated(number: int, frame: FrameType | None) -> None:
        came.append(128 + number)
        with suppress(OSError):  # the terminal may be gone
            name = signal.Signals(number).name
            print(f"tensorwire: ended by {name}", file=sys.stderr, flush=True)
        raise Terminated(came[-1])

    before = {number: signal.getsignal(number) for number in TOLD}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, terminated)
    try:
        try:
            yield
        except KeyboardInterrupt:
            if not came:
                came.append(_interrupted())
            raise
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(came[-1] if came else _interrupted()) from None
    except OSError as error:
        if TERMINATED.isdisjoint(came) and not _nobody_reads():
            print(f"tensorwire: {error}", file=sys.stderr, flush=True)
        _give_up_output()
        raise SystemExit(came[-1] if came else 1) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def folder(prefix: str) -> Iterator[str]:
    """A temporary folder, as ``tempfile.TemporaryDirectory`` makes it. No signal comes between its
    making and the certainty that it is removed, nor into its removal."""
    with ExitStack() as stack:
        with held():
            name = stack.enter_context(TemporaryDirectory(prefix=prefix))
        try:
            yield name
        finally:
            with held():
                stack.close()


@contextmanager
def held() -> Iterator[None]:
    """What would end this process waits until the block has ended. In the main thread.

    A mask would not do: the kernel gives a signal to any thread that does not block it, and Python
    runs the handler in the main thread all the same.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, *TOLD)
        if callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def _interrupted() -> int:
    """Tells of Ctrl-C; its exit code."""
    with suppress(OSError):  # the terminal may be gone
        print("tensorwire: interrupted", file=sys.stderr, flush=True)
    return 128 + signal.SIGINT


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose reader, such as ``head``, has seen enough."""
    output = select.poll()
    with suppress(AttributeError, OSError, ValueError):  # there is none, or it is no file
        output.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in output.poll(0))


def _give_up_output() -> None:
    """What cannot be written now is not tried again when the interpreter ends."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
