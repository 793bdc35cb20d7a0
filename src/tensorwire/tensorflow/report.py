"""What went which way, printed at the end of a process (``tensorwire run --stats``)."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from types import FrameType

from tensorwire.tensorflow import Engine, stats


def table(engine: Engine, found: dict[str, int | str]) -> str:
    """Lines of names and values, each line with its end."""
    head = f"tensorwire in process {os.getpid()}, TensorFlow {engine.tensorflow}:"
    if engine.plugin is None:
        return f"{head} stock gRPC, because TF_RDMA_ENABLED=false\n"
    rows = [(name.replace("_", " "), _value(name, value)) for name, value in found.items() if value]
    if not rows:
        return f"{head} no tensor left or reached it\n"
    width = max(len(name) for name, _ in rows)
    return "\n".join([head, *(f"  {name:<{width}}  {value}" for name, value in rows)]) + "\n"


def _value(name: str, value: int | str) -> str:
    if not isinstance(value, int):
        return value
    if name.endswith("bytes"):
        for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
            if value >> shift:
                return f"{value / (1 << shift):.1f} {unit}"
    return f"{value:,}"


def at_end(engine: Engine) -> None:
    """Prints the table when the interpreter ends, or SIGTERM ends the process, which is how servers
    that wait for ever are ended. ``os._exit`` and other signals print nothing."""
    once = threading.Lock()

    def show() -> None:
        if once.acquire(blocking=False):
            sys.stderr.write(table(engine, stats()))
            sys.stderr.flush()

    atexit.register(show)
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        _Ending(show)


class _Ending:
    """Calls ``show`` before SIGTERM does what it does by default.

    A Python handler would not run while the main thread waits in native code (``server.join()``).
    Python's wake-up pipe is written at once, so that a thread reads it. A program that takes the
    signal or the pipe for itself, and a forked child, keep what they had without this.
    """

    def __init__(self, show: object) -> None:
        assert callable(show)
        self._show = show
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.signal(signal.SIGTERM, self._handle)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._forget)
        threading.Thread(target=self._watch, name="tensorwire-stats", daemon=True).start()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        """Python calls it, perhaps much later; the thread has acted by then."""

    def _watch(self) -> None:
        while number := os.read(self._reader, 1):
            if number[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) == self._handle:
                self._show()
                ctypes.CDLL(None).signal(signal.SIGTERM, None)  # SIG_DFL; Python's own needs main
                os.kill(os.getpid(), signal.SIGTERM)

    def _forget(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
