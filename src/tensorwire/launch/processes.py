# SPDX-License-Identifier: Apache-2.0
"""The processes of a cluster: started, followed, and ended together."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import IO, NamedTuple

from tensorwire.launch import leftovers, place
from tensorwire.launch.guard import Guard
from tensorwire.launch.jobs import Cluster, Task
from tensorwire.launch.output import LOOK_SECONDS, Prefixed, tell

GRACE_SECONDS = 10.0
DRAIN_SECONDS = 2.0
"""For the last output, when a process that left its group keeps the pipe open."""
LONGEST_LINE = 1 << 16
TIMED_OUT = 124
"""Exit code when ``timeout`` has passed, as of timeout(1)."""

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BEFORE_SIGTERM = (signal.SIGINT, signal.SIGHUP)
"""Those that SIGTERM follows; only then comes SIGKILL."""

LAST_LINES = 12
"""Of a process that failed, in what is said of it at the end."""
# What TensorFlow says whenever it starts: notes and warnings of its native log, and that a library
# of the GPU's was registered before, which it calls an error.
BANNER = re.compile(
    r"\d{4}-\d\d-\d\d [\d:.]+: [IW] |[IW]0000 |WARNING: All log messages before absl::"
    r"|To enable the following instructions: "
    r"|(\d{4}-\d\d-\d\d [\d:.]+: E |E0000 ).*Unable to register cu"
)

# Runs in each new process before its command: whoever kills the launcher kills the command, too.
# A launcher that has gone before the request would never be noticed, hence the look at its pid. The
# request is the command's alone; what that has started, the guard ends.
START = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the launcher is gone")
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"cannot run {sys.argv[2]!r}: {error.strerror}", file=sys.stderr)
    sys.exit(127)
"""


class Ended(NamedTuple):
    """code: 0; else the exit code of the process that failed first (128 + n after signal n; 127:
    there is no such command), ``TIMED_OUT``, or 128 + n when this process got signal n, also when
    that came as the last thing, and all that do not serve had returned 0. why: empty, or a
    sentence, and the last lines that the failed process wrote to its stderr. signalled: the first
    signal that this process got; a process that was killed by one has the same code."""

    code: int
    why: str = ""
    signalled: int | None = None


Command = Sequence[str] | Callable[[Task], Sequence[str]]
Output = Callable[[Task, str, bytes], None]
"""Called with a task, ``stdout`` or ``stderr``, and a line with its end, if it has one."""


def run(
    cluster: Cluster,
    command: Command,
    *,
    environment: Mapping[str, str] | None = None,
    serving: Collection[str] | None = None,
    output: Output | None = None,
    grace: float = GRACE_SECONDS,
    timeout: float | None = None,
    restarts: int | None = None,
    restarted: Mapping[str, str] | None = None,
) -> Ended:
    """Runs ``command`` for every task and returns when all processes have ended.

    command: words, in which ``Cluster.fill`` replaces placeholders, or a function that gives them.
    environment: added to this process's own, without what a launcher has told this one of its rank;
    ``TF_CONFIG`` is set for each task.
    serving: jobs that are ended once all others have ended with 0; default ``cluster.serving``.
    output: takes the lines; by default they go to this process's stdout and stderr with a prefix.
    grace: seconds between SIGTERM and SIGKILL, and between a signal passed on and SIGTERM.
    timeout: seconds after which all are ended.
    restarts: None: all end when one fails. Else the others go on, and so many of those that fail
    before one has returned 0 are started again, with what ``restarted`` adds to their environment;
    the run has failed when none has returned 0.

    SIGINT, SIGTERM and SIGHUP are passed on; sent once more, they end the processes faster. They
    are handled only when this runs in the main thread. The thread must live until this returns:
    with it end the commands. When this process is killed, all that they have started ends, too,
    but for what has left its task's process group.
    Raises ValueError for a placeholder or a serving job that the cluster has not.
    """
    served = cluster.serving if serving is None else frozenset(serving)
    for job in served:
        cluster.hosts(job)
    commands = {
        task: list(command(task)) if callable(command) else cluster.fill(command, task)
        for task in cluster.tasks
    }

    def start(task: Task, more: Mapping[str, str]) -> None:
        added = {**(environment or {}), **_variables(cluster, task), **more}
        running.start(task, commands[task], added)

    running = _Running(cluster, served, output, grace)
    if restarts is not None:
        running.tolerate(restarts, lambda task: start(task, restarted or {}))
    try:
        with _signals(running.interrupt):
            for task in commands:
                start(task, {})
            running.wait(timeout)
        return running.ended()
    finally:
        try:
            running.close()
        finally:
            leftovers.remove()


def _variables(cluster: Cluster, task: Task) -> dict[str, str]:
    # Output goes into a pipe, which would hold back what a program prints until its end.
    return {"TF_CONFIG": cluster.tf_config(task), "PYTHONUNBUFFERED": "1"}


@contextmanager
def _signals(take: Callable[[int], None]) -> Iterator[None]:
    """Hands signals to ``take``, in the main thread; in any other they stay as they are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        take(number)

    taken = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, handle) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class _Pipe:
    task: Task
    stream: str
    file: IO[bytes]
    rest: bytes = b""
    returned: bool = False
    """Whether what was read last ended with a carriage return."""


class _Running:
    """The processes of one run, and what is known about its end."""

    def __init__(
        self, cluster: Cluster, serving: frozenset[str], output: Output | None, grace: float
    ):
        self._serving = serving
        self._returning = bool(set(cluster.jobs) - serving)
        self._output = output or Prefixed(cluster.tasks, self._tend)
        self._grace = grace
        self._alive: dict[Task, subprocess.Popen[bytes]] = {}
        self._ends: dict[Task, int] = {}
        """A pidfd of each process, where the kernel has them."""
        self._events = selectors.DefaultSelector()
        """Tells of ends in their order."""
        self._received: list[int] = []
        self._sent: signal.Signals | None = None
        """What was sent to all processes last; None as long as nothing has to end."""
        self._escalates = 0.0
        self._timeout = 0.0
        self._deadline: float | None = None
        self._drained: float | None = None
        """Until when the last output is waited for."""
        self._hurried = False
        """Whether a signal or the time has ended this, and not what the processes did."""
        self._code = 0
        self._why = ""
        self._first: int | None = None
        """The first signal that this process got."""
        self._failed: Task | None = None
        self._succeeded = False
        self._restarts = 0
        self._again: Callable[[Task], None] | None = None
        self._last = {task: deque[str](maxlen=LAST_LINES) for task in cluster.tasks}
        """Of what each has written to its stderr."""
        self._guard = Guard()

    def tolerate(self, restarts: int, again: Callable[[Task], None]) -> None:
        """Others go on when one fails; so many are started ``again``."""
        self._restarts, self._again = restarts, again

    def interrupt(self, number: int) -> None:
        """For a signal that this process got; safe in a signal handler."""
        self._received.append(number)

    def start(self, task: Task, words: list[str], environment: Mapping[str, str]) -> None:
        if self._received or self._sent is not None:
            return
        # A session of its own: signals come from here only, and reach all that a task has started.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", START, str(os.getpid()), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**place.outside(os.environ), **environment},
            start_new_session=True,
        )
        self._alive[task] = process
        self._guard.watch(process.pid)
        # Linux before 5.3, or a Python from there, has none; seccomp may not permit it.
        with suppress(OSError, AttributeError):
            self._ends[task] = os.pidfd_open(process.pid)
            self._events.register(self._ends[task], selectors.EVENT_READ, task)
        for stream, file in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert file is not None
            self._events.register(file, selectors.EVENT_READ, _Pipe(task, stream, file))

    def wait(self, timeout: float | None) -> None:
        """Until all have ended."""
        if timeout is not None:
            self._timeout, self._deadline = timeout, time.monotonic() + timeout
        while self._alive or self._received:  # a signal may come before the first has started
            self._wait()
            for task in [task for task in self._alive if task not in self._ends]:
                self._look(task)
            self._tend()
            returned = self._returning and all(task.job in self._serving for task in self._alive)
            # TensorFlow's servers wait in native code, where SIGINT does not end them.
            if returned and self._sent in (None, *BEFORE_SIGTERM):
                self._send(signal.SIGTERM)
        self._drained = time.monotonic() + DRAIN_SECONDS
        while self._events.get_map() and time.monotonic() < self._drained:
            self._wait()
        for key in list(self._events.get_map().values()):
            if isinstance(key.data, _Pipe):
                self._end(key.data)

    def ended(self) -> Ended:
        """How, once ``wait`` has returned and no signal can come any more."""
        while self._received:
            self._signalled(self._received.pop(0))
        last = self._last[self._failed] if self._failed is not None else ()
        return Ended(self._code, "\n    ".join([self._why, *last]), self._first)

    def close(self) -> None:
        """Leaves nothing behind, whatever has gone wrong."""
        for process in self._alive.values():
            self._reap(process)
        self._guard.close()
        for key in list(self._events.get_map().values()):
            if isinstance(key.data, _Pipe):
                key.data.file.close()
        for pidfd in self._ends.values():
            os.close(pidfd)
        self._events.close()

    def _tend(self, waited: float = 0.0) -> bool:
        """Does what signals and the time ask for, also while output waits for its reader, for so
        many seconds. Returns whether that one is waited for any longer."""
        while self._received:
            self._signalled(self._received.pop(0))
        now = time.monotonic()
        if self._deadline is not None and self._sent is None and now > self._deadline:
            seconds, self._deadline = self._timeout, None
            self._hurried = True
            self._fail(TIMED_OUT, f"{seconds:g} s have passed", "; ending all processes")
        if self._sent is not None and now > self._escalates:
            self._escalate()
        if not self._hurried:
            if self._drained is not None:  # the processes' last output waits, too
                self._drained = now + DRAIN_SECONDS
            return True
        running = any(_is_running(process) for process in self._alive.values())
        return running or waited < DRAIN_SECONDS

    def _look(self, task: Task) -> None:
        process = self._alive[task]
        if _is_running(process):
            return
        code = self._reap(process)
        del self._alive[task]
        if task in self._ends:
            self._events.unregister(self._ends[task])
            os.close(self._ends.pop(task))
        self._succeeded = self._succeeded or code == 0
        if code != 0 and self._sent is None:
            how = f"failed with exit code {code}"
            if code < 0:
                code, how = 128 - code, f"was ended by {signal.Signals(-code).name}"
            if self._goes_on_without(task, how):
                return
            self._failed = task
            self._fail(code, f"{task} {how}", "; ending the others" if self._alive else "")

    def _reap(self, process: subprocess.Popen[bytes]) -> int:
        """Kills what is left of its group, and waits for it. Returns its return code."""
        # Its number is its group's, too, and stays taken until the process is reaped.
        os.killpg(process.pid, signal.SIGKILL)
        self._guard.forget(process.pid)
        return process.wait()

    def _goes_on_without(self, task: Task, how: str) -> bool:
        if self._again is None or task.job in self._serving:
            return False
        others = any(other.job not in self._serving for other in self._alive)
        if not (others or self._succeeded):
            return False
        again = self._restarts > 0 and not self._succeeded
        what = "starting it again" if again else "the others go on"
        tell(f"{task} {how}; {what}", self._tend)
        if again:
            self._restarts -= 1
            self._again(task)
        return True

    def _signalled(self, number: int) -> None:
        self._hurried = True
        self._first = self._first or number
        if self._code == 0:
            self._code = 128 + number
            name = signal.Signals(number).name
            self._why = "interrupted" if number == signal.SIGINT else f"ended by {name}"
        if self._sent is None:
            self._send(signal.Signals(number))
        else:
            self._escalate()

    def _fail(self, code: int, why: str, what_follows: str) -> None:
        self._code, self._why = code, why
        self._send(signal.SIGTERM)
        tell(f"{why}{what_follows}", self._tend)

    def _escalate(self) -> None:
        self._send(signal.SIGTERM if self._sent in BEFORE_SIGTERM else signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        self._sent = number
        self._escalates = time.monotonic() + self._grace
        for process in self._alive.values():
            os.killpg(process.pid, number)

    def _wait(self) -> None:
        """For output and ends of processes, and deals with them in their order."""
        for key, _ in self._events.select(LOOK_SECONDS):
            if isinstance(key.data, _Pipe):
                self._read(key.data)
            else:
                self._look(key.data)

    def _read(self, pipe: _Pipe) -> None:
        data = os.read(pipe.file.fileno(), LONGEST_LINE)
        if not data:
            self._events.unregister(pipe.file)
            self._end(pipe)
            return
        if pipe.returned and data.startswith(b"\n"):  # of a line that has been taken
            data = data[1:]
        pipe.returned = data.endswith(b"\r")
        if not data:
            return
        lines = (pipe.rest + data).splitlines(keepends=True)
        whole = lines[-1].endswith((b"\n", b"\r")) or len(lines[-1]) > LONGEST_LINE
        pipe.rest = b"" if whole else lines.pop()
        for line in lines:
            self._take(pipe, line)

    def _take(self, pipe: _Pipe, line: bytes) -> None:
        self._output(pipe.task, pipe.stream, line)
        text = line.decode(errors="replace").rstrip()
        if pipe.stream == "stderr" and text and not BANNER.match(text):
            self._last[pipe.task].append(text)

    def _end(self, pipe: _Pipe) -> None:
        pipe.file.close()
        if pipe.rest:
            self._take(pipe, pipe.rest)
            pipe.rest = b""


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
