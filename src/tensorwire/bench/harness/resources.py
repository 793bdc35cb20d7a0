# SPDX-License-Identifier: Apache-2.0
"""What a measurement takes of the host while it runs: processors, memory and network."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from tensorwire.bench.harness import cpu

if TYPE_CHECKING:
    from typing_extensions import Self

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    """seconds: since the first sample. cpu_seconds: that the processes have used since then.
    memory: bytes that are resident in them; what two of them map counts twice. received, sent:
    bytes through all network interfaces of their hosts since then, loopback's too."""

    seconds: float
    cpu_seconds: float
    memory: int
    received: int
    sent: int


class Watched(Protocol):
    """samples: at the end of what was watched, all of them."""

    samples: list[Sample]


class Monitor:
    """Takes samples of these processes, in a thread, while its context is open: one at its begin,
    one at its end, and one each ``interval`` seconds between. begin: of ``time.monotonic``, until
    which it waits first. OSError when a process is gone."""

    def __init__(self, pids: Sequence[int], interval: float, begin: float = 0.0) -> None:
        self.samples: list[Sample] = []
        self._pids = pids
        self._interval = interval
        networks = {os.stat(f"/proc/{pid}/ns/net").st_ino: pid for pid in pids}
        self._interfaces = [Path(f"/proc/{pid}/net/dev") for pid in networks.values()]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="resources", daemon=True)
        time.sleep(max(begin - time.monotonic(), 0))
        self._first = self._totals()

    def __enter__(self) -> Self:
        self.samples.append(self._sample())
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        if kind is None:
            self.samples.append(self._sample())

    def _watch(self) -> None:
        try:
            while not self._ended.wait(self._interval):
                self.samples.append(self._sample())
        except OSError:
            return  # a process is gone, which its conversation tells better

    def _sample(self) -> Sample:
        now, first = self._totals(), self._first
        return Sample(
            now.seconds - first.seconds,
            now.cpu_seconds - first.cpu_seconds,
            now.memory,
            now.received - first.received,
            now.sent - first.sent,
        )

    def _totals(self) -> Sample:
        memory = sum(_resident(pid) for pid in self._pids)
        received, sent = zip(*(traffic(each.read_text()) for each in self._interfaces), strict=True)
        used = cpu.seconds(self._pids)
        return Sample(time.monotonic(), used, memory, sum(received), sum(sent))


def together(hosts: Sequence[Sequence[Sample]]) -> list[Sample]:
    """The samples of several hosts over the same time as those of one: the first ones, the second
    ones and so on, as far as all have them, and the last ones. Seconds are those of the first
    host."""
    before_last = min(map(len, hosts)) - 1
    aligned = zip(*([*each[:before_last], each[-1]] for each in hosts), strict=True)
    return [
        Sample(
            samples[0].seconds,
            sum(each.cpu_seconds for each in samples),
            sum(each.memory for each in samples),
            sum(each.received for each in samples),
            sum(each.sent for each in samples),
        )
        for samples in aligned
    ]


def timeline(rounds: Sequence[Sequence[Sample]]) -> tuple[list[float], dict[str, list[float]]]:
    """Of the samples of rounds, as if each began where the one before has ended: seconds, and
    figures of the time between two samples, by a name with the unit."""
    seconds: list[float] = []
    figures: dict[str, list[float]] = {
        "CPU, cores": [],
        "memory, MiB": [],
        "received, MB/s": [],
        "sent, MB/s": [],
    }
    begin = 0.0
    for samples in rounds:
        for before, after in itertools.pairwise(samples):
            took = after.seconds - before.seconds
            values = (
                (after.cpu_seconds - before.cpu_seconds) / took,
                after.memory / (1 << 20),
                (after.received - before.received) / took / 1e6,
                (after.sent - before.sent) / took / 1e6,
            )
            seconds.append(begin + after.seconds)
            for kept, value in zip(figures.values(), values, strict=True):
                kept.append(value)
        begin += samples[-1].seconds
    return seconds, figures


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def traffic(table: str) -> tuple[int, int]:
    """Bytes received and sent by all interfaces, of the text of /proc/net/dev."""
    rows = [line.partition(":")[2].split() for line in table.splitlines() if ":" in line]
    return sum(int(row[0]) for row in rows), sum(int(row[8]) for row in rows)
