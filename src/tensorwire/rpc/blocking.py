# SPDX-License-Identifier: Apache-2.0
"""Calls that block a thread whose event loop is running: nothing else on the loop goes on
meanwhile. Python's ``warnings`` tells it, and silences it."""

from __future__ import annotations

import sys
import warnings
from asyncio import _get_running_loop as running_loop

__all__ = ["running_loop", "warn"]

_OURS = ("tensorwire", "grpc")


def warn(what: str) -> None:
    """A RuntimeWarning about ``what``, at the place outside of this package that does it."""
    if "ipykernel" in sys.modules:
        return  # the cells of a notebook run on the kernel's loop, and are meant to block it
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and _package(frame.f_globals) in _OURS:
        frame = frame.f_back
        level += 1
    warnings.warn(
        f"{what} blocks the asyncio event loop that runs in this thread: use asyncio.to_thread, or "
        "future() with a callback",
        RuntimeWarning,
        stacklevel=level,
    )


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]
