# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a group find each other that are all in this process."""

from __future__ import annotations

import threading


class Values:
    """The least that is a store."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout: float) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout):
                raise TimeoutError(key)
            return self._values[key]
