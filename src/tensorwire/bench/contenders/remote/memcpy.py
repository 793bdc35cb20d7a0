# SPDX-License-Identifier: Apache-2.0
"""Limit line: copies inside one process, into memory that was touched before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tensorwire.bench.harness.work import Array, Work
from tensorwire.bench.suites.remote.contender import (
    BATCH,
    JAX,
    READS,
    Client,
    Contender,
    Measured,
    Owner,
    making,
    reading,
    source,
)


class _Owner(Owner):
    address = "here"

    def prepare(self, work: Work) -> None:
        return


class _Client(Client):
    def path(self) -> str:
        return "memory"

    def note(self) -> str:
        return "limit: no other process takes part"

    @contextmanager
    def access(self, work: Work) -> Iterator[Measured]:
        there = source(work)
        out = np.zeros(work.size // 4, np.float32)
        if work.case in JAX:
            yield making(work, lambda: _copied(out, there))
        elif work.case == "batch":
            strided = there.reshape(BATCH, 2, -1)[:, 0]
            parts = out.reshape(BATCH, -1)
            yield reading(work, out, lambda: np.copyto(parts, strided))
        else:
            yield reading(work, out, lambda: np.copyto(out, there))


def _copied(out: Array, there: Array) -> Array:
    np.copyto(out, there)
    return out


class Memcpy(Contender):
    role = "limit"
    transports = ("memory",)
    cases = frozenset({"batch", *READS, *JAX})

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def own(self, transport: str) -> Iterator[Owner]:
        yield _Owner()

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        yield _Client()
