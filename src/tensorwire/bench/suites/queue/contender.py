# SPDX-License-Identifier: Apache-2.0
"""What a contender of ``tensorwire bench queue`` has: a bounded queue, which processes put to that
were started by the one that gets. How to add one is told in ``docs/benchmarks.md``."""

from __future__ import annotations

import abc
from contextlib import AbstractContextManager
from multiprocessing.context import SpawnContext
from typing import Any

import numpy as np

from tensorwire.bench.harness import contenders
from tensorwire.bench.harness.work import Array

GROUP = "tensorwire.bench.contenders.queue"
"""Of the entry points that name classes of contenders."""


class Consumer(abc.ABC):
    """The process that gets, where the queue is, if it is anywhere.

    handle: what producers need to find it; whatever the start of a process can pass on. path: the
    transport that items take. note: what a reader of the figures has to know.
    """

    handle: Any
    path: str
    note: str = ""

    @abc.abstractmethod
    def get(self) -> Array:
        """The next item; waits for it. Valid until the next call."""


class Producer(abc.ABC):
    """A process that puts."""

    def empty(self, elements: int) -> Array:
        """Memory for a new item."""
        return np.empty(elements, np.float32)

    @abc.abstractmethod
    def put(self, array: Array) -> None:
        """Puts an item, which nobody writes any more; waits for room."""

    def flush(self) -> None:
        """Returns once nothing holds up what was put."""
        return


class Contender(contenders.Contender):
    """A queue."""

    @abc.abstractmethod
    def serve(
        self, transport: str, context: SpawnContext, depth: int, size: int
    ) -> AbstractContextManager[Consumer]:
        """A queue for ``depth`` items of ``size`` bytes. context: by which producers are
        started."""

    @abc.abstractmethod
    def connect(self, transport: str, handle: Any) -> AbstractContextManager[Producer]: ...


def names() -> list[str]:
    """Of the contenders that are installed."""
    return contenders.names(GROUP)


def find(name: str) -> Contender:
    """Raises ValueError for a name that no installed package has."""
    return contenders.find(GROUP, Contender, name)  # type: ignore[type-abstract]
