# SPDX-License-Identifier: Apache-2.0
"""Another process, which does what it is told, line by line of Python."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from tests import forked

import tensorwire
from tensorwire import weights

MODULE = "tests.weights.other"


def publisher(params: Any, *, transport: Any = None, **named: Any) -> tuple[Any, Any, int]:
    """A publisher, its server and the server's port."""
    server = tensorwire.server(ThreadPoolExecutor(4), transport=transport)
    made = weights.Publisher(params, server, **named)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return made, server, port


def channel(port: int, transport: str, limit: int = -1) -> tensorwire.Channel:
    """One that never falls back. Channels with different limits have links of their own."""
    options = [("grpc.max_receive_message_length", limit)]
    return tensorwire.insecure_channel(f"127.0.0.1:{port}", options, transport=transport)  # type: ignore[arg-type]


def main(_: Any) -> None:
    """What a line evaluates to is the answer; of a line that is no expression it is None."""
    names: dict[str, Any] = {
        "np": np,
        "os": os,
        "signal": signal,
        "tensorwire": tensorwire,
        "weights": weights,
        "publisher": publisher,
        "channel": channel,
    }
    for line in sys.stdin:
        source = json.loads(line)
        try:
            try:
                answer = [True, eval(source, names)]
            except SyntaxError:
                exec(source, names)
                answer = [True, None]
        except Exception as error:
            answer = [False, f"{type(error).__name__}: {error}"]
        print(json.dumps(answer, default=str), flush=True)
    os._exit(0)  # as a process that is killed: nothing is closed


class Other:
    def __init__(self, environment: dict[str, str]) -> None:
        self.child = forked.start(MODULE, None, environment)

    def begin(self, source: str) -> None:
        self.child.stdin.write(json.dumps(source) + "\n")
        self.child.stdin.flush()

    def answer(self) -> Any:
        line = self.child.stdout.readline()
        assert line, "the other process has ended"
        good, value = json.loads(line)
        assert good, value
        return value

    def do(self, source: str) -> Any:
        self.begin(source)
        return self.answer()


@contextmanager
def other(**environment: str) -> Iterator[Other]:
    made = Other(environment)
    try:
        yield made
    finally:
        made.child.kill()


def eventually(holds: Callable[[], bool]) -> None:
    """Leases go home a moment after the last view of them."""
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)
