# SPDX-License-Identifier: Apache-2.0
"""Children of the campaign: forked from a process that has loaded everything and started nothing,
so that one costs milliseconds. They end with it, and only they are ever killed."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import grpc  # noqa: F401  loaded once, for all children

import tensorwire.rpc  # noqa: F401  likewise

ANSWER_SECONDS: Final = 30.0
LOG: Final = Path("build/torture.log")
"""What children write to stderr: a server under attack has much to say."""
_PR_SET_PDEATHSIG: Final = 1
_M_MMAP_THRESHOLD: Final = -3
"""Large blocks are mappings of their own, and gone when freed: glibc would else keep some of them
for each thread, and nobody could see what is lost."""
_libc: Final = ctypes.CDLL(None)
_ours: Final[set[socket.socket]] = set()
"""This process's ends of conversations. A child closes those of its elder siblings, which would
else not notice when we close them."""


class GoneError(Exception):
    """The other end of a conversation has ended, or says nothing."""


class Conversation:
    """JSON messages over a stream socket, one a line."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def say(self, message: Any) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise GoneError(str(error)) from error

    def heard(self, seconds: float) -> bool:
        """Whether there is something to hear, waiting for it that long."""
        if b"\n" in self._buffer:
            return True
        return bool(select.select([self._socket], [], [], max(0.0, seconds))[0])

    def hear(self, seconds: float = ANSWER_SECONDS) -> Any:
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            if not self.heard(end - time.monotonic()):
                raise GoneError(f"silent for {seconds:.0f} s")
            try:
                got = self._socket.recv(65536)
            except OSError as error:
                raise GoneError(str(error)) from error
            if not got:
                raise GoneError("it has ended")
            self._buffer += got
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def close(self) -> None:
        _ours.discard(self._socket)
        self._socket.close()


Work = Callable[[Conversation, Any], None]
"""What a child does: it gets its end of the conversation, and its order."""


class Child:
    """A process that runs ``work``."""

    def __init__(
        self, work: Work, order: Any, environment: Mapping[str, str] | None = None
    ) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # a collection in the child would copy every page that it looks at
        self.pid = os.fork()
        if self.pid == 0:
            for other in (ours, *_ours):
                other.close()
            _run(work, order, theirs, parent, environment or {})
        theirs.close()
        _ours.add(ours)
        self.name = work.__name__
        self.talk = Conversation(ours)
        self._status: int | None = None

    def ask(self, message: Any, seconds: float = ANSWER_SECONDS) -> Any:
        self.talk.say(message)
        return self.talk.hear(seconds)

    def signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def stop(self) -> None:
        """Returns when it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def poll(self) -> int | None:
        """How it has ended, as of ``os.waitstatus_to_exitcode``."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def wait(self, seconds: float) -> int | None:
        watched = _pidfd(self.pid) if self.poll() is None else None
        if watched is not None:
            with contextlib.closing(watched):
                select.select([watched], [], [], seconds)
        return self.poll()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait(10)

    def end(self, seconds: float = 20.0) -> int | None:
        """Asks it to end, by closing the conversation; kills it if it does not. Its exit status, or
        None for one that had to be killed."""
        self.talk.close()
        status = self.wait(seconds)
        if status is None:
            self.signal(signal.SIGUSR1)  # says on stderr where it hangs
            self.wait(1)
            self.kill()
        return status


class _PidFd:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)


def _pidfd(pid: int) -> _PidFd:
    return _PidFd(os.pidfd_open(pid))


def _run(
    work: Work, order: Any, connection: socket.socket, parent: int, environment: Mapping[str, str]
) -> None:
    status = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        LOG.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 2)
        os.close(log)
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)
        _libc.mallopt(_M_MMAP_THRESHOLD, 1 << 20)
        os.environ.update(environment)
        work(Conversation(connection), order)
        status = 0
    except (GoneError, KeyboardInterrupt):
        status = 0  # the campaign is over
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


@contextlib.contextmanager
def child(
    work: Work, order: Any = None, environment: Mapping[str, str] | None = None
) -> Iterator[Child]:
    made = Child(work, order, environment)
    try:
        yield made
    finally:
        made.end()


# ----------------------------------------------------------------------- what the kernel says of it


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def private_mib(pid: int) -> float:
    """Memory of the process that is nobody's else, in MiB: its arena, which its peers may map, is
    not in it."""
    return status(pid, "RssAnon") / 1024


def status(pid: int, field: str) -> int:
    """A number of /proc/PID/status, as ``VmSize`` (KiB) or ``Threads``."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise KeyError(field)


def cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
