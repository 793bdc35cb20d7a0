# SPDX-License-Identifier: Apache-2.0
"""Stock grpcio, the baseline: a unary call for each item, which waits for room in a queue of the
server's process."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import SpawnContext
from typing import Any

import grpc

from tensorwire.bench.harness.work import Array, view
from tensorwire.bench.suites.queue.contender import Consumer, Contender, Producer
from tensorwire.bench.suites.rpc.messages import OPTIONS

SERVICE = "tensorwire.bench.queue"
WORKERS = 16


class _Consumer(Consumer):
    path = "grpc"

    def __init__(self, items: queue.Queue[bytes], handle: str) -> None:
        self._get = items.get
        self.handle = handle

    def get(self) -> Array:
        return view(self._get())


class _Producer(Producer):
    def __init__(self, channel: grpc.Channel) -> None:
        self._call: Any = channel.unary_unary(f"/{SERVICE}/Put")

    def put(self, array: Array) -> None:
        self._call(array.tobytes())


class Grpcio(Contender):
    transports = ("grpc",)
    packages = ("grpcio",)

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def serve(
        self, transport: str, context: SpawnContext, depth: int, size: int
    ) -> Iterator[Consumer]:
        items: queue.Queue[bytes] = queue.Queue(depth)

        def put(request: bytes, context: grpc.ServicerContext) -> bytes:
            items.put(request)
            return b""

        handler: Any = grpc.unary_unary_rpc_method_handler(put)
        server = grpc.server(ThreadPoolExecutor(WORKERS), options=OPTIONS)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Put": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield _Consumer(items, f"127.0.0.1:{port}")
        finally:
            server.stop(None)

    @contextmanager
    def connect(self, transport: str, handle: Any) -> Iterator[Producer]:
        with grpc.insecure_channel(handle, options=OPTIONS) as channel:
            yield _Producer(channel)
