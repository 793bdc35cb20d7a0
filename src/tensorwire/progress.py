# SPDX-License-Identifier: Apache-2.0
"""Progress of long work where no terminal shows a bar: lines on standard error."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

SECONDS: Final = 10.0
"""Between two lines."""


@contextmanager
def lines(state: Callable[[], str], seconds: float | None = None) -> Iterator[None]:
    """Prints what ``state`` returns: now, and each ``seconds`` (10) until the block ends. It is
    called on another thread then."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(SECONDS if seconds is None else seconds):
            say(state())

    say(state())
    thread = threading.Thread(target=tell, name="tensorwire-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
