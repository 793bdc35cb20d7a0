"""The end of the interpreter and fork(): what has to be closed, and what is not ours any more."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final, Protocol

from grpc._cython import cygrpc  # type: ignore[attr-defined]


class Closable(Protocol):
    def close_at_exit(self) -> None:
        """Ends the threads that this object started, and waits for them."""


class _Process:
    """State of this process; a child begins with a new one."""

    def __init__(self, generation: int = 0, orphaned: bool = False) -> None:
        self.generation = generation
        self.orphaned = orphaned
        self.used_grpc = False
        self.lock = threading.Lock()
        self.closables: weakref.WeakSet[Closable] = weakref.WeakSet()
        self.after_fork: list[Callable[[], None]] = []


_process = _Process()


def generation() -> int:
    """Another number in each process of a line of forks."""
    return _process.generation


def close_at_exit(thing: Closable) -> None:
    """Keeps a weak reference. Threads of ours are daemons that are joined by exit handlers: the
    interpreter would wait for others before it asks them to end."""
    with _process.lock:
        _process.closables.add(thing)


def using_grpc() -> str | None:
    """To be called before grpcio is used. Says why it cannot be used in this process."""
    if _process.orphaned:
        return (
            "this process was forked from one that had used gRPC, which does not work in the child "
            "unless GRPC_ENABLE_FORK_SUPPORT=1 was set before the parent imported grpc; "
            "set it, or start processes by spawn or forkserver"
        )
    _process.used_grpc = True
    return None


def _at_exit() -> None:
    with _process.lock:
        closables = list(_process.closables)
    for thing in closables:
        thing.close_at_exit()


def _in_child() -> None:
    global _process
    parent = _process
    orphaned = parent.orphaned or (parent.used_grpc and not _grpc_supports_fork())
    _process = _Process(parent.generation + 1, orphaned)
    _process.after_fork = parent.after_fork
    for reset in _process.after_fork:
        reset()


def _grpc_supports_fork() -> bool:
    enabled: Callable[[], bool] | None = getattr(cygrpc, "is_fork_support_enabled", None)
    return bool(enabled()) if enabled else False


def reset_after_fork(reset: Callable[[], None]) -> None:
    """Calls ``reset`` in children."""
    _process.after_fork.append(reset)


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)

JOIN_SECONDS: Final = 5.0
"""How long the end of the interpreter waits for a thread that blocks in foreign code."""
