# SPDX-License-Identifier: Apache-2.0
"""Limit line: one copy inside one process, into memory that was touched before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from tensorwire.bench.harness.work import Work, answer, payload
from tensorwire.bench.suites.rpc.contender import Call, Client, Contender, Server, Stream, ready


class _Server(Server):
    address = "here"

    def prepare(self, work: Work) -> None:
        return


class _Client(Client):
    def path(self) -> str:
        return "memory"

    def note(self) -> str:
        return "limit: no other process takes part"

    def call(self, work: Work) -> AbstractContextManager[Call]:
        source = payload(work.size)
        target = np.zeros_like(source)
        reads = work.reads

        def call() -> int:
            np.copyto(target, source)
            return answer(target, reads)

        return ready(call)

    def stream(self, work: Work) -> AbstractContextManager[Stream]:
        source = payload(work.size)
        target = np.zeros_like(source)

        def stream(count: int) -> int:
            for _ in range(count):
                np.copyto(target, source)
            return count

        return ready(stream)


class Memcpy(Contender):
    role = "limit"
    transports = ("memory",)

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        yield _Server()

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        yield _Client()
