# SPDX-License-Identifier: Apache-2.0
"""What went which way, printed at the end of a process (``tensorwire run --stats``)."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType

from tensorwire.tensorflow import Engine, counters
from tensorwire.tensorflow.settings import why_stock

SIZES = {
    "arena_high_water": "memory: the arena has held at most",
    "arena_capacity": "  and may hold (TF_RDMA_BUF_SIZE)",
}
"""Bytes, without a count."""


def table(
    engine: Engine, counted: Sequence[tuple[str, str | None, int]], stock: str | None = None
) -> str:
    """Lines with their ends: what was counted, how often, and how many bytes.

    counted: by ``counters()``; what stayed 0 is left out, and what has no label.
    stock: the setting that leaves all to stock gRPC; what comes by it then is not counted.
    """
    head = f"tensorwire in process {os.getpid()}, TensorFlow {engine.tensorflow}:"
    if stock is not None:
        return f"{head} stock gRPC, because {stock}\n"
    found = {name: value for name, _, value in counted}
    rows = [
        (label, str(value), _size(found.get(f"{name}_bytes")))
        for name, label, value in counted
        if label is not None and value
    ]
    if not rows:
        return f"{head} no tensor came or went\n"
    if found.get("arena_high_water"):
        rows += [(label, "", _size(found.get(name))) for name, label in SIZES.items()]
    width, digits = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"  {label:<{width}}  {count:>{digits}}  {size}" for label, count, size in rows]
    return "\n".join([head, *map(str.rstrip, lines)]) + "\n"


def _size(nbytes: int | None) -> str:
    if nbytes is None:
        return ""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >> shift:
            return f"{nbytes / (1 << shift):.1f} {unit}"
    return f"{nbytes} bytes"


def at_end(engine: Engine) -> None:
    """Prints the table when the interpreter ends, or SIGTERM ends the process, which is how servers
    that wait for ever are ended. ``os._exit`` and other signals print nothing."""
    once = threading.Lock()
    stock = why_stock()

    def show() -> None:
        if once.acquire(blocking=False):
            sys.stderr.write(table(engine, counters(), stock))
            sys.stderr.flush()

    atexit.register(show)
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        _Ending(show)


class _Ending:
    """Calls ``show`` before SIGTERM does what it does by default.

    A thread does so. Python's wake-up pipe tells it at once, even while the main thread waits in
    native code (``server.join()``), where no handler of Python's runs. An event loop that handles
    signals of its own takes the pipe; then the handler tells the thread. It interrupts the main
    thread anywhere, in the middle of a line to stderr or of ``stats()`` perhaps, so it may do
    neither itself. A program that takes the signal, and a forked child, have what they would have
    without this.
    """

    def __init__(self, show: Callable[[], None]) -> None:
        self._show = show
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        signal.signal(signal.SIGTERM, self._handle)
        others = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if others != -1:
            signal.set_wakeup_fd(others)
        os.register_at_fork(after_in_child=self._forget)
        threading.Thread(target=self._watch, name="tensorwire-stats", daemon=True).start()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        with suppress(BlockingIOError):  # full of signals
            os.write(self._writer, bytes([number]))

    def _watch(self) -> None:
        while number := os.read(self._reader, 1):
            if number[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) == self._handle:
                self._show()
                ctypes.CDLL(None).signal(signal.SIGTERM, None)  # SIG_DFL; Python's own needs main
                os.kill(os.getpid(), signal.SIGTERM)

    def _forget(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            others = signal.set_wakeup_fd(-1)
            if others != self._writer:
                signal.set_wakeup_fd(others)
