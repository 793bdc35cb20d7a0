# SPDX-License-Identifier: Apache-2.0
"""Horovod's API of Tensorwire, with PyTorch's tensors: names negotiated, tensors fused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tensorwire.bench.harness.work import Array
from tensorwire.bench.suites.channels.contender import Channel, Contender, Trainer
from tensorwire.bench.suites.collectives.contender import Meeting
from tensorwire.bench.suites.collectives.torch_ranks import why_no_torch


class _Trainer(Trainer):
    def __init__(self, torch: Any, hvd: Any, path: str, elements: Sequence[int]) -> None:
        self.path = path
        self._hvd = hvd
        self._tensors = [torch.zeros(count, dtype=torch.float32) for count in elements]
        self._arrays = [tensor.numpy() for tensor in self._tensors]

    def gradients(self) -> Sequence[Array]:
        return self._arrays

    def average(self, gradients: Sequence[Array]) -> Sequence[Array]:
        handles = [
            self._hvd.allreduce_async_(tensor, name=str(number))
            for number, tensor in reversed(list(enumerate(self._tensors)))
        ]
        for handle in handles:
            self._hvd.synchronize(handle)
        return gradients


class Horovod(Contender):
    role = "own"
    transports = ("shm", "tcp")
    packages = ("torch",)

    def viable(self, transport: str) -> str | None:
        return why_no_torch()

    @contextmanager
    def join(self, meeting: Meeting, transport: str, elements: Sequence[int]) -> Iterator[Channel]:
        runtime = os.path.dirname(meeting.folder)
        os.environ |= {
            "HOROVOD_RANK": str(meeting.rank),
            "HOROVOD_SIZE": str(meeting.size),
            "PMIX_NAMESPACE": os.path.basename(runtime),  # where they meet, in the next one
            "XDG_RUNTIME_DIR": runtime,
            "TENSORWIRE_TRANSPORT": transport,
        }
        import tensorwire.horovod.torch as hvd
        import torch

        torch.set_num_threads(1)
        hvd.init()
        try:
            yield _Trainer(torch, hvd, transport, elements)
        finally:
            hvd.shutdown()
