# SPDX-License-Identifier: Apache-2.0
"""Gloo, through torch.distributed: ``send`` and ``recv`` between two ranks, into memory that is
used again. No status, no metadata, no deadlines of a call."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from tensorwire import signals
from tensorwire.bench.harness.work import Work, answer, payload
from tensorwire.bench.suites.rpc.contender import Call, Client, Contender, Server, Stream

SERVER, CLIENT = 0, 1
_STOP: Final = np.float32(np.nan)
"""As the first word of what a server receives: its client has ended. No payload has it."""


def _tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)


def _enter(file: str, rank: int) -> Any:
    """Waits for the other rank. file: by which they meet."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    return dist


class _Server(Server):
    def __init__(self, file: str) -> None:
        self.address = file
        self.work = Work("request", 0)
        self.dist: Any = None
        self.entering = threading.Thread(target=self._enter, daemon=True)

    def _enter(self) -> None:
        self.dist = _enter(self.address, SERVER)

    def prepare(self, work: Work) -> None:
        self.entering.join()
        self.work = work

    def attend(self) -> None:
        work, dist = self.work, self.dist
        told = np.zeros(1, np.float32 if work.case == "pull" else np.int64)
        array = payload(work.size)
        tensor, words = _tensor(array), _tensor(told)
        if work.case == "request":
            while self._received(tensor, array):
                told[0] = answer(array, work.reads)
                dist.send(words, CLIENT)
        elif work.case == "pull":
            while self._received(words, told):
                dist.send(tensor, CLIENT)
        else:
            while self._counted(words, told):
                for _ in range(int(told[0])):
                    dist.recv(tensor, CLIENT)
                dist.send(words, CLIENT)

    def _received(self, tensor: Any, array: Any) -> bool:
        """False when the client has ended."""
        self.dist.recv(tensor, CLIENT)
        return not np.isnan(array[0])

    def _counted(self, words: Any, told: Any) -> bool:
        self.dist.recv(words, CLIENT)
        return bool(told[0])


class _Client(Client):
    def __init__(self, dist: Any) -> None:
        self.dist = dist

    def path(self) -> str:
        return "tcp"

    @contextmanager
    def call(self, work: Work) -> Iterator[Call]:
        dist, reads, array = self.dist, work.reads, payload(work.size)
        told, asked = np.zeros(1, np.int64), np.zeros(1, np.float32)
        tensor, words, question = map(_tensor, (array, told, asked))

        def push() -> int:
            dist.send(tensor, SERVER)
            dist.recv(words, SERVER)
            return int(told[0])

        def pull() -> int:
            dist.send(question, SERVER)
            dist.recv(tensor, SERVER)
            return answer(array, reads)

        pulls = work.case == "pull"
        if pulls:
            array[:] = 0
        try:
            yield pull if pulls else push
        finally:
            last = asked if pulls else array
            last[0] = _STOP
            dist.send(question if pulls else tensor, SERVER)

    @contextmanager
    def stream(self, work: Work) -> Iterator[Stream]:
        dist, told = self.dist, np.zeros(1, np.int64)
        tensor, words = _tensor(payload(work.size)), _tensor(told)

        def stream(count: int) -> int:
            told[0] = count
            dist.send(words, SERVER)
            for _ in range(count):
                dist.send(tensor, SERVER)
            dist.recv(words, SERVER)
            return int(told[0])

        try:
            yield stream
        finally:
            told[0] = 0
            dist.send(words, SERVER)


class Gloo(Contender):
    transports = ("tcp",)
    packages = ("torch",)
    concurrent = False

    def viable(self, transport: str) -> str | None:
        return None if find_spec("torch") else "PyTorch is not installed: pip install torch"

    def supports(self, work: Work) -> bool:
        return work.size > 0 and super().supports(work)

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        with signals.folder("tensorwire-bench-") as folder:
            server = _Server(os.path.join(folder, "ranks"))
            server.entering.start()
            yield server

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        dist = _enter(address, CLIENT)
        try:
            yield _Client(dist)
        finally:
            dist.destroy_process_group()
