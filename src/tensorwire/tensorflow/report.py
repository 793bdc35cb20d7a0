# SPDX-License-Identifier: Apache-2.0
"""What went which way, printed at the end of a process (``tensorwire run --stats``)."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from types import FrameType

from tensorwire import transports
from tensorwire.tensorflow import Engine, stats
from tensorwire.tensorflow.settings import why_stock

SIZES = {
    "arena_high_water": "memory: the arena has held at most",
    "arena_capacity": "  and may hold (TF_RDMA_BUF_SIZE)",
}
"""Bytes, without a count."""
NOT_SHOWN = ("arena_", "peers")
"""``stats()`` has them."""


@cache
def labels() -> dict[str, str]:
    """What the plugin counts, in the order of the table; each with a counter of bytes beside it, or
    not."""
    names = transports.names()
    return {
        "received_in_place": "received: read where the sender has them, in shared memory",
        **{f"received_{name}": f"received: over {name}, copied" for name in names},
        "received_copied": "  of these, large ones of this host (32 KiB and more)",
        "received_grpc": "received: by stock gRPC",
        "grpc_because_peer": "  of these, the sender has no tensorwire",
        "grpc_because_link": "  of these, no link to the sender could be made",
        "grpc_because_device": "  of these, on a device whose memory is out of reach",
        "received_realigned": "received in place, but copied because they were not aligned",
        "received_planned": "received: ahead of a call, as planned (also counted above)",
        "planned_edges": "  tensors of a step that came to be planned",
        "unplanned_edges": "  of these, no longer planned",
        "planned_dropped": "  came as planned, and nobody wanted them",
        "plans_refused": "plans given up because the peer broke them",
        "served_planned": "sent: ahead of a call, as planned (also counted below)",
        "served_lent": "sent: lent where they lie in the arena",
        "served_small": "sent: small ones (below 32 KiB), within messages",
        "served_copied": "sent: large ones by a copy into the arena or a ring",
        "served_mutable": "  of these, what TensorFlow writes in place (reference variables)",
        "served_pushed": "sent: large ones through a socket, which copies them",
        "served_serialized": "sent: strings and variants, in serialised form",
        "served_grpc": "sent: by stock gRPC",
        "collective_grouped": "collectives: by groups of ranks",
        "collective_ungrouped": "collectives: by TensorFlow's own algorithms",
        "collective_received": "  of these, buffers received over links",
        "collective_grpc": "  of these, buffers received by stock gRPC",
        "groups": "groups of ranks joined",
        "links": "links to other servers",
        "links_lost": "  of these, lost",
        **{f"failed_{name}": f"  {name}: not made, or lost" for name in names},
        "allocated_in_arena": "memory: blocks in the arena",
        "allocated_traced": "memory: blocks by operations whose tensors are sent",
        "sites_traced": "  of so many operations",
        "allocated_elsewhere": "memory: blocks outside the full arena (raise TF_RDMA_BUF_SIZE)",
    }


def table(engine: Engine, found: Mapping[str, int], stock: str | None = None) -> str:
    """Lines with their ends: what was counted, how often, and how many bytes.

    found: of ``stats()``; what stayed 0 is left out, what has no label here goes by its name.
    stock: the setting that leaves all to stock gRPC; what comes by it then is not counted.
    """
    head = f"tensorwire in process {os.getpid()}, TensorFlow {engine.tensorflow}:"
    if stock is not None:
        return f"{head} stock gRPC, because {stock}\n"
    known = labels()
    others = [
        name
        for name in found
        if name not in known and not name.startswith(NOT_SHOWN) and not _counted_with(name, found)
    ]
    rows = [
        (known.get(name, name), str(found[name]), _size(found.get(f"{name}_bytes")))
        for name in (*known, *others)
        if found.get(name)
    ]
    if not rows:
        return f"{head} no tensor came or went\n"
    if found.get("arena_high_water"):
        rows += [(label, "", _size(found.get(name))) for name, label in SIZES.items()]
    width, digits = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"  {label:<{width}}  {count:>{digits}}  {size}" for label, count, size in rows]
    return "\n".join([head, *map(str.rstrip, lines)]) + "\n"


def _counted_with(name: str, found: Mapping[str, int]) -> bool:
    return name.endswith("_bytes") and name.removesuffix("_bytes") in found


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
            sys.stderr.write(table(engine, stats(), stock))
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
