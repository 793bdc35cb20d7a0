# SPDX-License-Identifier: Apache-2.0
"""The end of the interpreter and fork(): what has to be closed, and what is not ours any more."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from tensorwire import _core
from tensorwire.rpc.grpc_internals import at_end_of_main_thread
from tensorwire.rpc.weak import WeakMembers

T = TypeVar("T")


class Closable(Protocol):
    def close_at_exit(self) -> None:
        """Ends the threads that this object started, and waits for them, for JOIN_SECONDS."""


# grpcio's core prepares for fork() unless this says no; then what a child does with it hangs. Read
# now, as the core does: what a program sets later has no effect.
_FORK_SUPPORT: Final = os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "")
_OFF: Final = ("0", "f", "false", "n", "no")


class _Process:
    """State of this process; a child begins with a new one."""

    def __init__(self, generation: int = 0, heir: bool = False) -> None:
        self.generation = generation
        self.heir = heir
        self.used_grpc = False
        self.adopting = threading.RLock()
        self.lock = threading.RLock()  # guards what follows
        self.changed = threading.Condition(self.lock)
        self.starting = 0  # blocks of starting_threads() that have not ended
        self.ender: int | None = None  # the thread that ends the interpreter, once it does
        self.servers: WeakMembers[Closable] = WeakMembers()
        self.others: WeakMembers[Closable] = WeakMembers()
        self.after_fork: list[Callable[[], None]] = []


_process = _Process()


def generation() -> int:
    """Another number in each process of a line of forks."""
    return _process.generation


def inherited(made: int) -> str | None:
    """Why what was made in the process of that ``generation`` does not work here; None: it does."""
    if made == _process.generation:
        return None
    return f"it was made before fork(), and pid {os.getpid()} is a child"


def adopting() -> contextlib.AbstractContextManager[object]:
    """A lock of this process, not its parent's: held while it makes what it inherited its own."""
    return _process.adopting


def close_at_exit(thing: Closable, *, server: bool = False) -> None:
    """Keeps a weak reference. Threads of ours are daemons that exit handlers end: for others, the
    interpreter would wait before anything could ask them to end. A server is closed once the main
    thread has ended, because the interpreter waits for its pool then, whose threads may wait for
    peers; the rest once all of the user's threads have ended."""
    with _process.lock:
        (_process.servers if server else _process.others).add(thing)


@contextlib.contextmanager
def starting_threads() -> Iterator[None]:
    """Threads are started in this block only, by us and by grpcio on our behalf. Once the
    interpreter ends, it raises RuntimeError in all threads but the one that ends it, as
    ``Thread.start`` does from Python 3.12 on: with some before it (seen with 3.11.2), a thread that
    was started and has not begun to run when its state is freed ends the process by SIGSEGV."""
    process = _process
    with process.lock:
        if process.ender not in (None, threading.get_ident()):
            raise RuntimeError("no thread can be started: the interpreter is ending")
        process.starting += 1
    try:
        yield
    finally:
        with process.lock:
            process.starting -= 1
            process.changed.notify_all()


def start(thread: threading.Thread) -> None:
    with starting_threads():
        thread.start()


def using_grpc() -> str | None:
    """To be called before grpcio is used. Says why it cannot be used in this process."""
    if _process.heir and _FORK_SUPPORT.lower() in _OFF:
        return (
            "this process was forked from one that had used gRPC, which does not work in the child "
            f"with GRPC_ENABLE_FORK_SUPPORT={_FORK_SUPPORT}: unset it, or set it to 1, before the "
            "parent imports grpc, or start processes by spawn or forkserver"
        )
    _process.used_grpc = True
    return None


def heir() -> bool:
    """Whether this process was forked from one that had used gRPC. New channels must not take the
    connections that grpcio keeps for channels of the same target, because these are the parent's.
    """
    return _process.heir


def _close_servers() -> None:
    _close(_process.servers)


def _close_others() -> None:
    with _process.lock:
        _process.ender = threading.get_ident()
        _process.changed.wait_for(lambda: not _process.starting, JOIN_SECONDS)
    _close(_process.servers)
    _close(_process.others)


def _close(closables: WeakMembers[Closable]) -> None:
    with _process.lock:
        things = closables.take()
    for thing in things:
        thing.close_at_exit()


def _in_child() -> None:
    global _process
    parent = _process
    _process = _Process(parent.generation + 1, parent.heir or parent.used_grpc)
    _process.after_fork = parent.after_fork
    for reset in _process.after_fork:
        reset()


def reset_after_fork(reset: Callable[[], None]) -> None:
    """Calls ``reset`` in children."""
    _process.after_fork.append(reset)


class PerProcess(Generic[T]):
    """One thing of this process: made at first use, and anew in a forked child, which has none of
    its parent's threads."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self.forget()
        reset_after_fork(self.forget)

    def forget(self) -> None:
        """The next use makes another one."""
        self._lock = threading.RLock()  # what is collected while it is made may ask for it, too
        self._made: T | None = None

    def get(self) -> T:
        if (made := self._made) is None:
            with self._lock:
                if (made := self._made) is None:
                    made = self._made = self._make()
        return made


JOIN_SECONDS: Final = 5.0
"""For threads that may block in foreign code."""

# Ours comes before that of concurrent.futures, having been added later.
at_end_of_main_thread(_close_servers)
# Handlers run last come first: the core, which stops serving threads at its own, has to be there.
assert _core
atexit.register(_close_others)
os.register_at_fork(after_in_child=_in_child)
