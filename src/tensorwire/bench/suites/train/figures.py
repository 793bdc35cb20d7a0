# SPDX-License-Identifier: Apache-2.0
"""Figures of one run of a cluster, from what its processes wrote down.

They are about the time in which all workers were beyond their first steps and none had finished.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tensorwire import transports

FIRST_STEP = 10
"""Speed counts from the tenth step on, however short the warm-up was."""

COPIES = ("served_copied", "served_pushed", "received_copied", "received_realigned")
"""Counters of tensors of 32 KiB and more that were copied on their way, at one end: into the arena,
or through a ring or a socket."""
ARENA_FULL = "allocated_elsewhere"
ARENA_BYTES = "arena_capacity"

Process = Mapping[str, Any]


@cache
def byte_counters() -> dict[str, str]:
    """How tensors came, and the counters of their bytes."""
    return {
        "in place": "received_in_place_bytes",
        **{name: f"received_{name}_bytes" for name in (*transports.names(), "grpc")},
        "collective": "collective_received_bytes",
        "group": "collective_grouped_bytes",
    }


class TooShortError(ValueError):
    """The workers had no time in common after their first steps."""


@dataclass(frozen=True)
class Figures:
    """images_per_second: of all workers together; the rest is for a step of each of them.

    bytes_per_step, copies_per_step: tensors received, and tensors copied on the way; None where
    nothing counted them. path: the ways the bytes went, the most used first.
    arena_full: how often memory had to come from elsewhere, from the start of the processes on:
    variables that found it full are allocated before the first step.
    """

    images_per_second: float
    steps_per_second: float
    cpu_seconds_per_step: float
    bytes_per_step: float | None
    copies_per_step: float | None
    path: str
    arena_full: int
    seconds: float


def figures(workers: Sequence[Process], servers: Sequence[Process]) -> Figures:
    """TooShortError when the run was too short to say anything."""
    start = max(ends[first_step(worker)] for worker in workers for ends in [worker["step_ends"]])
    end = min(worker["step_ends"][-1] for worker in workers)
    if end <= start:
        raise TooShortError(f"no time in common after step {FIRST_STEP}: ask for more num_batches")
    seconds = end - start
    steps = [steps_between(worker["step_ends"], start, end) for worker in workers]
    step_count = sum(steps) / len(steps)
    images = sum(n * worker["batch_size"] for n, worker in zip(steps, workers, strict=True))
    everyone = [*workers, *servers]
    cpu = sum(between(process, "cpu_seconds", start, end) for process in everyone)
    counted = [counts(process, start, end) for process in everyone]
    total = {name: sum(each.get(name, 0.0) for each in counted) for name in set().union(*counted)}
    ways = {way: total.get(counter, 0.0) for way, counter in byte_counters().items()}
    return Figures(
        images_per_second=images / seconds,
        steps_per_second=step_count / seconds,
        cpu_seconds_per_step=cpu / step_count,
        bytes_per_step=sum(ways.values()) / step_count if total else None,
        copies_per_step=sum(total.get(name, 0.0) for name in COPIES) / step_count
        if total
        else None,
        path=path(ways) if total else "",
        arena_full=sum(last_counts(process).get(ARENA_FULL, 0) for process in everyone),
        seconds=seconds,
    )


def first_step(worker: Process) -> int:
    """The step at whose end measuring begins; ``step_ends`` begins with the start of the first."""
    step = max(int(worker["warmup"]), FIRST_STEP)
    if step >= len(worker["step_ends"]):
        raise TooShortError(f"only {len(worker['step_ends']) - 1} steps: ask for more num_batches")
    return step


def steps_between(ends: Sequence[float], start: float, end: float) -> float:
    """Steps, with the parts of those at either edge."""
    places = np.interp([start, end], ends, np.arange(len(ends)))
    return float(places[1] - places[0])


def between(process: Process, name: str, start: float, end: float) -> float:
    samples = process["samples"]
    times = [sample["time"] for sample in samples]
    values = np.interp([start, end], times, [sample[name] for sample in samples])
    return float(values[1] - values[0])


def counts(process: Process, start: float, end: float) -> dict[str, float]:
    """How much each counter grew, by the samples in that time.

    A counter that stands still then comes to exactly 0.
    """
    samples = process["samples"]
    times = [sample["time"] for sample in samples]
    last = bisect_right(times, end) - 1
    first = min(bisect_left(times, start), last - 1)
    if first < 0:
        return {}
    scale = (end - start) / (times[last] - times[first])
    before, after = samples[first]["counts"], samples[last]["counts"]
    return {name: (value - before.get(name, 0)) * scale for name, value in after.items()}


def last_counts(process: Process) -> Mapping[str, int]:
    found: Mapping[str, int] = process["samples"][-1]["counts"]
    return found


def arena_bytes(processes: Iterable[Process]) -> int | None:
    """What the arena of each may hold; None where none has one."""
    return next((c[ARENA_BYTES] for c in map(last_counts, processes) if ARENA_BYTES in c), None)


def path(ways: Mapping[str, float]) -> str:
    """Such as ``in place 97 %, grpc 3 %``."""
    total = sum(ways.values())
    if not total:
        return "none"
    order = sorted((way for way in ways if ways[way] / total >= 0.005), key=lambda w: -ways[w])
    if len(order) == 1:
        return order[0]
    return ", ".join(f"{way} {100 * ways[way] / total:.0f} %" for way in order)
