# SPDX-License-Identifier: Apache-2.0
"""What peers did wrong: refused handshakes, broken protocols, exceeded budgets.

Each is counted by its kind and its reason, which are fixed words, and told in a line of the log. A
stranger must not be able to fill a disk: of one reason, five lines are told at once and then one
every ten seconds, which says how many others there were.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import suppress
from typing import Final

from tensorwire import _core
from tensorwire.log import LOGGER

_JOIN_SECONDS: Final = 5.0


def counts() -> dict[tuple[str, str], int]:
    """Incidents of this process by (kind, reason), those that never happened among them."""
    return _core.incidents()


def follow() -> None:
    """Has lines logged from now on, by a thread that nothing waits for."""
    _follower.start()


class _Follower:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=_log_lines, name="tensorwire-audit", daemon=True)
                thread.start()
                self._thread = thread

    def end(self) -> None:
        """What is still to be told is told."""
        if self._thread is not None:
            _core.audit_close()
            self._thread.join(_JOIN_SECONDS)


def _log_lines() -> None:
    with suppress(_core.StatusError):  # without a runtime, which others tell, nothing happens
        while (line := _core.audit_next()) is not None:
            kind, reason, peer, details, more = line
            others = f" ({more} more since the last line)" if more else ""
            LOGGER.warning("%s, %s: %s: %s%s", kind, reason, peer or "?", details, others)


_follower: Final = _Follower()
os.register_at_fork(after_in_child=_follower.reset)
# Before the handler of the core, which was registered earlier.
atexit.register(_follower.end)
