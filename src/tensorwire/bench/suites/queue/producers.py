# SPDX-License-Identifier: Apache-2.0
"""The processes that put, as the one that gets starts, steers and ends them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from typing import Any

import numpy as np

from tensorwire.bench.harness.control import AgentError
from tensorwire.bench.harness.processes import START_SECONDS, STOP_SECONDS
from tensorwire.bench.harness.work import payload
from tensorwire.bench.suites.queue.contender import find

END = np.zeros(1, np.float32)
"""The last item of each producer in a visit."""


def _produce(
    name: str, transport: str, handle: Any, size: int, going: Any, orders: Connection
) -> None:
    """Puts items while ``going`` is set, each time that it is told to."""
    pattern = payload(size)
    with find(name).connect(transport, handle) as producer:
        orders.send("ready")
        while orders.recv():
            while going.value:
                array = producer.empty(pattern.size)
                array[...] = pattern
                producer.put(array)
            producer.put(END)
            producer.flush()


class Producers:
    def __init__(self, pids: Sequence[int], going: Any, orders: Sequence[Connection]) -> None:
        self.pids = pids
        self._going = going
        self._orders = orders

    def start(self) -> None:
        self._going.value = True
        for each in self._orders:
            each.send(True)

    def stop(self) -> None:
        """Each puts the item that it has begun, and then END."""
        self._going.value = False


@contextmanager
def producing(
    context: SpawnContext, count: int, name: str, transport: str, handle: Any, size: int
) -> Iterator[Producers]:
    """So many processes, connected. AgentError when one does not come."""
    going = context.RawValue("b", False)
    ends = [context.Pipe() for _ in range(count)]
    processes = [
        context.Process(
            target=_produce, args=(name, transport, handle, size, going, theirs), daemon=True
        )
        for _, theirs in ends
    ]
    try:
        for process in processes:
            process.start()
        for mine, theirs in ends:
            theirs.close()
            if not mine.poll(START_SECONDS):
                raise AgentError("a producer has not started")
            mine.recv()
        pids = [process.pid for process in processes if process.pid is not None]
        yield Producers(pids, going, [mine for mine, _ in ends])
        for mine, _ in ends:
            mine.send(False)
        for process in processes:
            process.join(STOP_SECONDS)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
