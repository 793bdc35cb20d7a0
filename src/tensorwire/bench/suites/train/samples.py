# SPDX-License-Identifier: Apache-2.0
"""What a process of the cluster has used and moved, looked at from time to time."""

from __future__ import annotations

import threading
import time
from typing import Any

PERIOD = 0.1


class Samples:
    """From construction until ``close``: times of time.monotonic(), CPU seconds of the process, and
    tensorwire's counters (empty with stock gRPC)."""

    def __init__(self, protocol_counts: bool) -> None:
        self._counts = protocol_counts
        self._taken: list[dict[str, Any]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)
        self._thread.start()

    def close(self) -> list[dict[str, Any]]:
        """All that were taken, the last one now."""
        self._ended.set()
        self._thread.join()
        self._take()
        return self._taken

    def _run(self) -> None:
        while True:
            self._take()
            if self._ended.wait(PERIOD):
                return

    def _take(self) -> None:
        sample = {"time": time.monotonic(), "cpu_seconds": time.process_time(), "counts": {}}
        if self._counts:
            from tensorwire.tensorflow import stats

            sample["counts"] = {k: v for k, v in stats().items() if isinstance(v, int)}
        self._taken.append(sample)
