# SPDX-License-Identifier: Apache-2.0
"""The limit that computing sets: ranks that exchange nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tensorwire.bench.harness.work import Array
from tensorwire.bench.suites.channels.contender import Channel, Contender, Trainer
from tensorwire.bench.suites.collectives.contender import Meeting


class _Trainer(Trainer):
    path = "none"
    exchanges = False

    def __init__(self, elements: Sequence[int]) -> None:
        self._gradients = [np.zeros(count, np.float32) for count in elements]

    def gradients(self) -> Sequence[Array]:
        return self._gradients

    def average(self, gradients: Sequence[Array]) -> Sequence[Array]:
        return gradients


class Nothing(Contender):
    role = "limit"
    transports = ("none",)

    def viable(self, transport: str) -> str | None:
        return None

    @contextmanager
    def join(self, meeting: Meeting, transport: str, elements: Sequence[int]) -> Iterator[Channel]:
        yield _Trainer(elements)
