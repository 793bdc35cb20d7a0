# SPDX-License-Identifier: Apache-2.0
"""Calls that block a thread whose event loop is running: nothing else on the loop goes on
meanwhile. Python's ``warnings`` tells it, and silences it."""

from __future__ import annotations

import sys
import warnings

from tensorwire.rpc.grpc_internals import level_outside, running_loop

__all__ = ["running_loop", "warn"]

_OURS = ("tensorwire", "grpc")


def warn(what: str) -> None:
    """A RuntimeWarning about ``what``, at the place outside of this package that does it."""
    if "ipykernel" in sys.modules:
        return  # the cells of a notebook run on the kernel's loop, and are meant to block it
    warnings.warn(
        f"{what} blocks the asyncio event loop that runs in this thread: use asyncio.to_thread, or "
        "future() with a callback",
        RuntimeWarning,
        stacklevel=level_outside(_OURS),
    )
