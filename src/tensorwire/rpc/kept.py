# SPDX-License-Identifier: Apache-2.0
"""Frees the objects that a message needed for longer than the call that sent it: the runtime's own
threads may not."""

from __future__ import annotations

import threading
from typing import Final

from tensorwire import _core
from tensorwire.rpc import lifetime


class _Thread:
    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="tensorwire-memory", daemon=True)
        lifetime.close_at_exit(self)
        lifetime.start(self._thread)

    def _run(self) -> None:
        while _core.free_kept():
            pass

    def close_at_exit(self) -> None:
        _core.close_kept()
        self._thread.join(lifetime.JOIN_SECONDS)


_thread: Final = lifetime.PerProcess(_Thread)
lifetime.reset_after_fork(_core.reset_kept)


def free_in_background() -> None:
    """To be called before anything is sent; again, if you like."""
    _core.when_kept(_thread.get)
