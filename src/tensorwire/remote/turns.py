# SPDX-License-Identifier: Apache-2.0
"""Threads that take turns, none longer than it has time."""

from __future__ import annotations

import threading
from time import monotonic

from tensorwire.remote.errors import DeadlineExceededError


def take(lock: threading.Lock, ends: float | None, late: str) -> None:
    """Acquires the lock, until a point of time of ``time.monotonic``. DeadlineExceededError:
    ``late``."""
    left = -1.0 if ends is None else min(max(0.0, ends - monotonic()), threading.TIMEOUT_MAX)
    if not lock.acquire(timeout=left):
        raise DeadlineExceededError(late)
