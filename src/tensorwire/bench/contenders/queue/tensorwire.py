# SPDX-License-Identifier: Apache-2.0
"""``tensorwire.queue``. Large items are made in the arena and published; the queue is the
consumer's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import SpawnContext
from typing import Any

import numpy as np

import tensorwire
from tensorwire import queue
from tensorwire.bench.harness.work import Array
from tensorwire.bench.suites.queue.contender import Consumer, Contender, Producer

NAME = "bench"
IN_ARENA = 64 << 10
"""Bytes from which an item is made there."""
HEADERS = 1 << 10


class _Consumer(Consumer):
    def __init__(self, own: queue.Queue, handle: str, path: str) -> None:
        self._queue = own
        self.handle = handle
        self.path = path

    def get(self) -> Array:
        item: Array = self._queue.get()
        return item


class _Producer(Producer):
    def __init__(self, client: queue.QueueClient) -> None:
        self._put = client.put
        self.flush = client.flush  # type: ignore[method-assign]

    def empty(self, elements: int) -> Array:
        if elements * 4 < IN_ARENA:
            return np.empty(elements, np.float32)
        return tensorwire.empty(elements, timeout=None)

    def put(self, array: Array) -> None:
        self._put(tensorwire.publish(array) if array.nbytes >= IN_ARENA else array)


class Tensorwire(Contender):
    role = "own"
    transports = ("shm", "tcp")
    packages = ("tensorwire",)

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def serve(
        self, transport: Any, context: SpawnContext, depth: int, size: int
    ) -> Iterator[Consumer]:
        server = tensorwire.server(ThreadPoolExecutor(2), transport=transport)
        room = depth * (size + HEADERS)
        own = queue.serve(server, NAME, capacity=depth, capacity_bytes=room)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield _Consumer(own, f"127.0.0.1:{port}", transport)
        finally:
            own.close(drain=False)
            server.stop(None)

    @contextmanager
    def connect(self, transport: Any, handle: Any) -> Iterator[Producer]:
        with (
            tensorwire.insecure_channel(handle, transport=transport) as channel,
            queue.connect(channel, NAME) as client,
        ):
            yield _Producer(client)
