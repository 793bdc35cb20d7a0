# SPDX-License-Identifier: Apache-2.0
"""Agents in processes of their own, and links between them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_orders = itertools.count()


class RefusedError(Exception):
    """The agent's runtime has raised a StatusError."""

    def __init__(self, code: int, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self.code = code
        self.details = details


class Step(NamedTuple):
    """A protocol step, as in ``tensorwire.trace.Event``."""

    time_ns: int
    direction: str
    name: str
    stream: int
    message: int
    segment: int
    bytes: int
    id: int


class Trace:
    """The steps of one link, oldest first."""

    def __init__(self, steps: list[list[Any]]) -> None:
        self.steps = [Step(*step) for step in steps]

    def sizes(self, direction: str, name: str) -> list[int]:
        return [s.bytes for s in self.steps if (s.direction, s.name) == (direction, name)]

    def count(self, direction: str, name: str) -> int:
        return len(self.sizes(direction, name))

    def eager(self, direction: str) -> list[int]:
        """Bytes of segments in each eager send; the first one goes with the announcement."""
        names = ("MESSAGE", "EAGER")
        found = [s.bytes for s in self.steps if s.direction == direction and s.name in names]
        return [size for size in found if size]

    def most_in_flight(self) -> int:
        """Of the reads that this end has begun, how many were under way at once."""
        now = most = 0
        for step in self.steps:
            now += {"READ": 1, "READ_DONE": -1}.get(step.name, 0)
            most = max(most, now)
        return most


class Agent:
    """``tests.verbs.agent`` in another process; its environment is this one's and ``settings``."""

    def __init__(self, **settings: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.verbs.agent"],
            cwd=ROOT,
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, what: str, /, **arguments: Any) -> Any:
        with self._lock:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self.process.stdin.flush()
            said = json.loads(self.process.stdout.readline() or '{"answer": "it has ended"}')
        return self._answer(said)

    @staticmethod
    def _answer(said: Any) -> Any:
        if "error" in said:
            raise RefusedError(*said["error"])
        return said["answer"]

    def begin(self, what: str, **arguments: Any) -> int:
        """Starts an order that ``finish`` waits for; others can be given meanwhile."""
        order = next(_orders)
        self.do("begin", order=order, what=what, arguments=arguments)
        return order

    def finish(self, order: int) -> Any:
        """Its answer."""
        said = self.do("result", order=order)
        assert said is not None, "it is still under way"
        return self._answer(said)

    def trace(self, link: int) -> Trace:
        return Trace(self.do("trace", link=link))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """As a program ends that has finished."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


def connect(client: Agent, server: Agent, address: str, **changes: Any) -> int:
    """A link over ``address`` of a server that listens; the number by which the client knows it."""
    invitation = server.do("admit", hello=client.do("hello"))
    answer = client.do("connect", address=address, **{**invitation, **changes})
    assert answer["transport"] == address.partition(":")[0]
    number: int = answer["link"]
    return number


class Linked(NamedTuple):
    client: Agent
    server: Agent
    address: str
    link: int


@contextlib.contextmanager
def agents(*settings: dict[str, str]) -> Iterator[list[Agent]]:
    """They start at the same time, which takes a while under emulation."""
    started = [Agent(**one) for one in settings]
    try:
        yield started
    finally:
        for agent in started:
            agent.end()


@contextlib.contextmanager
def linked(
    client_settings: dict[str, str] | None = None, server_settings: dict[str, str] | None = None
) -> Iterator[Linked]:
    with agents(client_settings or {}, server_settings or {}) as (client, server):
        address = server.do("listen")["address"]
        yield Linked(client, server, address, connect(client, server, address))
