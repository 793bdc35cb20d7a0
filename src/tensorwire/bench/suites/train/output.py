# SPDX-License-Identifier: Apache-2.0
"""What training tells: the lines that tf_cnn_benchmarks prints, for scripts that read them, and the
losses."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from tensorwire.bench.suites.train.options import Options

RULER = "-" * 64
HEADING = "Step\tImg/sec\tloss"

Print = Callable[[str], None]


def header(options: Options, tensorflow: str, device: str) -> list[str]:
    """device: where this worker computes."""
    lines = [
        f"TensorFlow:  {'.'.join(tensorflow.split('.')[:2])}",
        f"Model:       {options.model}",
        f"Mode:        {'forward-only' if options.forward_only else 'training'}",
        f"Batch size:  {options.batch * options.workers} global",
        f"             {options.batch} per device",
        f"Devices:     {[device]}",
        f"Data format: {options.data_format}",
        f"Optimizer:   {options.optimizer}",
        f"Variables:   {options.variable_update}",
    ]
    if options.job_name:
        lines.append(f"Sync:        {options.cross_replica_sync}")
    return [*lines, "=" * 10]


def speed_line(step: int, batch: int, seconds: Sequence[float], loss: float) -> str:
    """seconds: of each step so far. +/- is the standard error of the mean, jitter the scaled median
    distance from the median speed."""
    speeds = batch / np.asarray(seconds)
    mean = batch / np.mean(seconds)
    error = np.std(speeds) / np.sqrt(len(speeds))
    jitter = 1.4826 * np.median(np.abs(speeds - np.median(speeds)))
    return f"{step}\timages/sec: {mean:.1f} +/- {error:.1f} (jitter = {jitter:.1f})\t{loss:.3f}"


def total_lines(images_per_second: float) -> list[str]:
    return [RULER, f"total images/sec: {images_per_second:.2f}", RULER]


class Watch:
    """The speed of all workers together: by the global step, which each of them moves on.

    first: the global step at which all have warmed up; last: the one before the first worker can
    have finished.
    """

    def __init__(self, options: Options, show: Print) -> None:
        workers = options.workers
        self._batch = options.batch
        self._first = workers * options.warmup
        self._last = workers * (options.warmup + options.num_batches) - 1
        self._show = show
        self._start: tuple[int, float] | None = None
        self._end: tuple[int, float] | None = None

    def saw(self, global_step: int, now: float) -> None:
        """now: of time.monotonic()."""
        if self._start is None and global_step >= self._first:
            self._start = global_step, now
            self._show(f"Starting real work at step {global_step} at time {time.ctime()}")
        elif self._start is not None and self._end is None and global_step >= self._last:
            self._end = global_step, now
            self._show(f"Finishing real work at step {global_step} at time {time.ctime()}")

    def images_per_second(self) -> float | None:
        """None when the global step has not come far enough."""
        if self._start is None or self._end is None or self._end[0] <= self._start[0]:
            return None
        steps, seconds = (end - start for start, end in zip(self._start, self._end, strict=True))
        return float(steps * self._batch / seconds)


def told(losses: Sequence[float]) -> list[float | None]:
    """None for one that is no finite number: JSON has no word for it (RFC 8259, section 6), and it
    equals the same one of another run."""
    return [loss if math.isfinite(loss) else None for loss in losses]
