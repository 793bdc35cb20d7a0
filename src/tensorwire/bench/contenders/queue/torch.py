# SPDX-License-Identifier: Apache-2.0
"""``torch.multiprocessing.Queue``: tensors in shared memory, their handles through a pipe. Items
are made in memory that is shared already, as PyTorch's DataLoader makes batches: the queue would
copy others there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing.context import SpawnContext
from typing import Any

from tensorwire.bench.harness.work import Array
from tensorwire.bench.suites.queue.contender import Consumer, Contender, Producer


class _Consumer(Consumer):
    path = "shared memory"

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._kept: Any = None

    def get(self) -> Array:
        self._kept = self.handle.get()
        item: Array = self._kept.numpy()
        return item


class _Producer(Producer):
    def __init__(self, handle: Any) -> None:
        import torch

        self._put = handle.put
        self._torch: Any = torch
        self._made: tuple[Any, Any] = None, None
        """The newest item, and its tensor, which alone knows that the memory is shared."""

    def empty(self, elements: int) -> Array:
        shared = self._torch.UntypedStorage._new_shared(4 * elements)
        tensor = self._torch.empty(0, dtype=self._torch.float32).set_(shared)
        array: Array = tensor.numpy()
        self._made = array, tensor
        return array

    def put(self, array: Array) -> None:
        made, tensor = self._made
        self._put(tensor if array is made else self._torch.from_numpy(array))


class Torch(Contender):
    transports = ("shared memory",)
    packages = ("torch",)

    def viable(self, transport: str) -> str | None:
        return None if find_spec("torch") else "needs PyTorch: pip install torch"

    @contextmanager
    def serve(
        self, transport: str, context: SpawnContext, depth: int, size: int
    ) -> Iterator[Consumer]:
        from torch import multiprocessing as torch_multiprocessing

        queues: Any = torch_multiprocessing.get_context("spawn")
        yield _Consumer(queues.Queue(depth))

    @contextmanager
    def connect(self, transport: str, handle: Any) -> Iterator[Producer]:
        import torch
        from torch import multiprocessing  # noqa: F401  # how tensors are passed on

        torch.set_num_threads(1)
        yield _Producer(handle)
        handle.close()
        handle.join_thread()
