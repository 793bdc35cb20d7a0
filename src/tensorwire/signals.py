# SPDX-License-Identifier: Apache-2.0
"""How Ctrl-C and SIGTERM end a command: in order, with a word and a shell's exit code."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ending() -> Iterator[None]:
    """Within it SIGTERM raises SystemExit with code 143, so that processes and folders that were
    made are cleared away; KeyboardInterrupt becomes SystemExit with code 130. In the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    except KeyboardInterrupt:
        print("tensorwire: interrupted", file=sys.stderr, flush=True)
        raise SystemExit(128 + signal.SIGINT) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, _frame: FrameType | None) -> None:
    print("tensorwire: ended by SIGTERM", file=sys.stderr, flush=True)
    raise SystemExit(128 + number)
