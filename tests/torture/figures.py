# SPDX-License-Identifier: Apache-2.0
"""Rows of figures, and the table that they make."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

SLACK_MS: Final = 0.5
"""What the scheduler of a busy machine adds to a call: p99 under attack may be twice the quiet one
and this."""
SPARE_DESCRIPTORS: Final = 12
"""Those of the links that come and go while one looks."""
ENOUGH_CALLS: Final = 1000
"""Fewer make no p99 that could be judged."""


class Say:
    """Progress: at most a line each ``every`` seconds, unless it is news."""

    def __init__(self, every: float = 5.0) -> None:
        self._every = every
        self._began = time.monotonic()
        self._last = -every
        self.part = ""

    def __call__(self, text: str, *, news: bool = False) -> None:
        now = time.monotonic() - self._began
        if news or now - self._last >= self._every:
            self._last = now
            print(f"[{now:6.1f} s] {self.part}: {text}", flush=True)


class Latency(NamedTuple):
    """Of calls, in milliseconds."""

    calls: int
    p50: float
    p99: float

    @staticmethod
    def of(milliseconds: Iterable[float]) -> Latency:
        ordered = sorted(milliseconds)
        if not ordered:
            return Latency(0, 0.0, 0.0)
        return Latency(len(ordered), percentile(ordered, 50), percentile(ordered, 99))

    def __str__(self) -> str:
        return f"{self.p50:.2f} / {self.p99:.2f}" if self.calls else ""


def percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


NO_CALLS: Final = Latency(0, 0.0, 0.0)


@dataclass
class Row:
    """What one torment has done, and what it did to the good ones."""

    torment: str
    attempts: int = 0
    failures: list[str] = field(default_factory=list)
    """One sentence each; the first ones are kept."""
    failed: int = 0
    good_calls: int = 0
    new_links: int = 0
    quiet: Latency = NO_CALLS
    attacked: Latency = NO_CALLS
    memory_before: float = 0.0
    """Private memory of the process under torment, MiB."""
    memory_after: float = 0.0
    descriptors_before: int = 0
    descriptors_after: int = 0
    seconds: float = 0.0
    note: str = ""

    KEPT = 5

    def fail(self, sentence: str, count: int = 1) -> None:
        self.failed += count
        if len(self.failures) < self.KEPT:
            self.failures.append(sentence)

    def judge_latency(self) -> None:
        if min(self.quiet.calls, self.attacked.calls) < ENOUGH_CALLS:
            return
        if self.attacked.p99 > 2 * self.quiet.p99 + SLACK_MS:
            self.fail(f"p99 rose from {self.quiet.p99:.2f} to {self.attacked.p99:.2f} ms")

    def judge_memory(self, may_grow_mib: float) -> None:
        if self.memory_after > self.memory_before + may_grow_mib:
            self.fail(
                f"private memory rose from {self.memory_before:.0f} to {self.memory_after:.0f} MiB"
            )

    def judge_descriptors(self, spare: int = SPARE_DESCRIPTORS) -> None:
        if self.descriptors_after > self.descriptors_before + spare:
            self.fail(
                f"descriptors rose from {self.descriptors_before} to {self.descriptors_after}"
            )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@contextlib.contextmanager
def tormented(name: str, say: Say) -> Iterator[Row]:
    """The row of one torment. One that breaks down has failed, and the campaign goes on."""
    row = Row(name)
    say.part = name
    began = time.monotonic()
    try:
        yield row
    except Exception as error:
        row.fail(f"the torment has broken down: {type(error).__name__}: {error}")
    row.seconds = time.monotonic() - began
    say(f"{row.attempts} attempts, {row.failed} failures {row.failures[:1] or ''}", news=True)


Part = Callable[[float, int, Say], list[Row]]
"""A kind of torment: it takes a scale (1: as the campaign is meant) and a seed."""


def scaled(full: int, scale: float, least: int = 1) -> int:
    return max(least, round(full * scale))


_HEADINGS: Final = (
    "torment",
    "attempts",
    "failed",
    "good calls",
    "new links",
    "quiet p50 / p99, ms",
    "under it",
    "private MiB",
    "descriptors",
    "s",
    "note",
)


def _cells(row: Row) -> tuple[str, ...]:
    memory = f"{row.memory_before:.0f} → {row.memory_after:.0f}" if row.memory_before else ""
    held = f"{row.descriptors_before} → {row.descriptors_after}" if row.descriptors_before else ""
    return (
        row.torment,
        f"{row.attempts:,}",
        f"**{row.failed}**" if row.failed else "0",
        f"{row.good_calls:,}" if row.good_calls else "",
        f"{row.new_links:,}" if row.new_links else "",
        str(row.quiet),
        str(row.attacked),
        memory,
        held,
        f"{row.seconds:.0f}",
        row.note,
    )


def table(rows: Iterable[Row]) -> str:
    lines = [_cells(row) for row in rows]
    out = ["| " + " | ".join(_HEADINGS) + " |", "|---|" + "---:|" * (len(_HEADINGS) - 2) + "---|"]
    out.extend("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join(out)


def circumstances(command: str, seed: int) -> str:
    cores = len(os.sched_getaffinity(0))
    when = time.strftime("%Y-%m-%d", time.gmtime())
    return (
        f"`{command}`, seed {seed}, {when}, Linux {platform.release()} ({platform.machine()}), "
        f"{cores} cores, Python {platform.python_version()}."
    )
