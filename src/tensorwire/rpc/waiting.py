# SPDX-License-Identifier: Apache-2.0
"""Waiting for an event so that Ctrl-C ends it at once."""

from __future__ import annotations

import threading
from time import monotonic
from typing import Final

_SLICE_SECONDS: Final = 0.25


def wait(event: threading.Event, seconds: float | None = None) -> bool:
    """As ``event.wait(seconds)``. The interpreter sleeps on through a signal that came just before
    it fell asleep, or that the system gave to another thread: so it never sleeps for long."""
    ends = None if seconds is None else monotonic() + seconds
    while not event.is_set():
        left = _SLICE_SECONDS if ends is None else ends - monotonic()
        if left <= 0:
            return False
        event.wait(min(left, _SLICE_SECONDS))
    return True
