# SPDX-License-Identifier: Apache-2.0
"""Processes that are forked from one that has imported a module, and has done nothing else: the
import of TensorFlow takes seconds, and that of PyTorch a second.

    python -m tests.forked MODULE DESCRIPTOR

imports ``MODULE``, and for each order that comes over the socket forks a process that calls its
``main(argument)``.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
MAX_ORDER = 128 << 10
"""Bytes."""


class Child:
    """A process whose standard input and output are pipes to this one. It is no child of this
    process, which learns when it ends, and not how."""

    def __init__(self, pid: int, handle: int, stdin: IO[str], stdout: IO[str]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._handle = handle

    def wait(self, seconds: float) -> None:
        ended = select.poll()
        ended.register(self._handle, select.POLLIN)
        assert ended.poll(seconds * 1000), f"process {self.pid} has not ended"

    def kill(self) -> None:
        """Returns once it has ended. May be called again."""
        if self.stdout.closed:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        self.wait(30)
        os.close(self._handle)
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.stdout.close()


class Server:
    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", module, str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, **environment},
                pass_fds=[theirs.fileno()],
            )

    def start(self, argument: Any, environment: Mapping[str, str]) -> Child:
        stdin, write = os.pipe()
        read, stdout = os.pipe()
        pipes = os.fdopen(write, "w"), os.fdopen(read)
        order = json.dumps([argument, {**os.environ, **environment}]).encode()
        assert len(order) <= MAX_ORDER
        try:
            socket.send_fds(self._orders, [order], [stdin, stdout])
            pid, handles, _, _ = socket.recv_fds(self._orders, 32, 1)
        finally:
            os.close(stdin)
            os.close(stdout)
        assert handles, "the fork server has ended; standard error says why"
        return Child(int(pid), handles[0], *pipes)

    def close(self) -> None:
        self._orders.close()
        self._process.wait()


def inherited(*calls: Callable[[], object]) -> list[str]:
    """What they raise in a child of this process, each as ``TypeOfError: text``; "" is nothing. The
    child ends with the first that takes half a minute."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = []
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            for call in calls:
                signal.alarm(30)
                try:
                    call()
                except Exception as error:
                    found.append(f"{type(error).__name__}: {error}")
                else:
                    found.append("")
            os.write(write, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said, "the child has said nothing"
    return list(json.loads(said))


_servers: dict[str, Server] = {}


def start(module: str, argument: Any, environment: Mapping[str, str]) -> Child:
    """A process that calls ``main(argument)`` of ``module``; ``argument``: what JSON has. It has
    this process's environment and what is given beside; the module was imported in that of the
    first call."""
    if module not in _servers:
        _servers[module] = Server(module, environment)
        atexit.register(_servers[module].close)
    return _servers[module].start(argument, environment)


def _become(module: str, order: bytes, standard: list[int]) -> int:
    """The exit code."""
    try:
        for to, fd in enumerate(standard):
            os.dup2(fd, to)
            os.close(fd)
        argument, environment = json.loads(order)
        os.environ.clear()
        os.environ.update(environment)
        import_module(module).main(argument)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


def _serve(module: str, orders: socket.socket) -> None:
    import_module(module)
    while True:
        order, fds, _, _ = socket.recv_fds(orders, MAX_ORDER, 2)
        if not order:
            return
        pid = os.fork()
        if pid == 0:
            orders.close()
            os._exit(_become(module, order, fds))
        for fd in fds:
            os.close(fd)
        handle = os.pidfd_open(pid)
        socket.send_fds(orders, [str(pid).encode()], [handle])
        os.close(handle)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    # Ctrl-C goes to the whole group of processes: the tests decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
