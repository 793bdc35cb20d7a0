# SPDX-License-Identifier: Apache-2.0
"""KeyboardInterrupt at any moment of what a program does."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from random import Random


def alarmed(
    rounds: int, do: Callable[[], object], done: Callable[[], bool], latest: float = 5e-4
) -> int:
    """Does something until it is ``done``; KeyboardInterrupt comes at any moment of it, over and
    over in the first ``rounds``. How often it has come."""
    random = Random(1)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    came = 0
    while True:
        # Around the loop: a signal that another thread gets comes later than the timer's end.
        with suppress(KeyboardInterrupt):
            while not done():
                rounds -= 1
                after = random.uniform(1e-6, latest) if rounds > 0 else 0
                signal.setitimer(signal.ITIMER_REAL, after)
                do()
                signal.setitimer(signal.ITIMER_REAL, 0)
            return came
        came += 1
