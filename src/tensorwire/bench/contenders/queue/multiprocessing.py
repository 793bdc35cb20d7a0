# SPDX-License-Identifier: Apache-2.0
"""``multiprocessing.Queue``: pickled arrays through a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext
from typing import Any

from tensorwire.bench.harness.work import Array
from tensorwire.bench.suites.queue.contender import Consumer, Contender, Producer


class _Consumer(Consumer):
    path = "pipe"

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def get(self) -> Array:
        item: Array = self.handle.get()
        return item


class _Producer(Producer):
    def __init__(self, handle: Any) -> None:
        self._put = handle.put

    def put(self, array: Array) -> None:
        self._put(array)


class Multiprocessing(Contender):
    transports = ("pipe",)

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def serve(
        self, transport: str, context: SpawnContext, depth: int, size: int
    ) -> Iterator[Consumer]:
        yield _Consumer(context.Queue(depth))

    @contextmanager
    def connect(self, transport: str, handle: Any) -> Iterator[Producer]:
        yield _Producer(handle)
        handle.close()
        handle.join_thread()
