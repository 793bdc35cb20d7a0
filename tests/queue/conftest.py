# SPDX-License-Identifier: Apache-2.0
"""A server with a queue, and threads, in this process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from tests import forked
from tests.transports import HERE

import tensorwire
from tensorwire import queue

LIMIT = 30.0
"""Seconds: what takes that long does not come."""


def until(condition: Callable[[], bool]) -> None:
    """Waits for something that nobody tells of."""
    never = threading.Event()
    for _ in range(int(LIMIT / 0.002)):
        if condition():
            return
        never.wait(0.002)
    raise AssertionError("it has not come")


class Served(NamedTuple):
    target: str
    own: queue.Queue

    @property
    def name(self) -> str:
        return self.own.name

    def connect(self, **options: Any) -> queue.QueueClient:
        return queue.connect(self.target, self.name, **options)


@pytest.fixture(scope="session", params=HERE)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[tensorwire.Server, str]]:
    """With a pool of one thread, which no queue may need."""
    running = tensorwire.server(ThreadPoolExecutor(1), transport=request.param)
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    yield running, f"127.0.0.1:{port}"
    running.stop(None)


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def serve(server: tuple[tensorwire.Server, str], numbers: Iterator[int]) -> Iterator[Any]:
    """Makes a queue with a name of its own."""
    with ExitStack() as stack:

        def made(capacity: int = 4, capacity_bytes: int = 64 << 20, **more: Any) -> Served:
            own = queue.serve(
                server[0],
                f"queue-{next(numbers)}",
                capacity=capacity,
                capacity_bytes=capacity_bytes,
                **more,
            )
            stack.callback(own.close, drain=False)
            return Served(server[1], own)

        yield made


@pytest.fixture
def start() -> Iterator[Callable[..., forked.Child]]:
    """Starts a program of ``programs`` in a process of its own."""
    with ExitStack() as stack:

        def started(*argument: Any) -> forked.Child:
            child = forked.start("tests.queue.programs", argument, {})
            stack.callback(child.kill)
            return child

        yield started


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(24) as made:
        yield made
