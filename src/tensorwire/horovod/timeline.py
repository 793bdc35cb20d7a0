# SPDX-License-Identifier: Apache-2.0
"""What happens to each tensor, as a file for chrome://tracing and Perfetto."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec


class Timeline:
    """A JSON array of events, each tensor a row. Thread-safe."""

    def __init__(self, path: str, mark_cycles: bool = False) -> None:
        self._lock = threading.Lock()
        self._file = Path(path).open("wb")  # noqa: SIM115
        self._file.write(b"[")
        self._rows: dict[str, int] = {}
        self._start = time.monotonic()
        self._first = True
        self._mark_cycles = mark_cycles

    def begin(self, tensor: str, activity: str) -> None:
        self._event(tensor, ph="B", name=activity)

    def end(self, tensor: str) -> None:
        self._event(tensor, ph="E")

    def instant(self, tensor: str, activity: str) -> None:
        self._event(tensor, ph="i", name=activity, s="t")

    def cycle(self) -> None:
        if self._mark_cycles:
            self.instant("cycles", "CYCLE_START")

    def _event(self, tensor: str, **fields: str) -> None:
        with self._lock:
            if self._file.closed:
                return
            row = self._rows.get(tensor)
            if row is None:
                row = self._rows[tensor] = len(self._rows)
                self._write(ph="M", name="process_name", pid=row, args={"name": tensor})
            at = round((time.monotonic() - self._start) * 1e6)
            self._write(pid=row, tid=0, ts=at, **fields)

    def _write(self, **event: Any) -> None:
        self._file.write(b"\n" if self._first else b",\n")
        self._first = False
        self._file.write(msgspec.json.encode(event))

    def close(self) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.write(b"\n]\n")
                self._file.close()
