# SPDX-License-Identifier: Apache-2.0
"""NIXL over UCX: each receiver reads all of the trainer's tensors by one transfer, which was
prepared and ends with a notification. All ranks poll meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tensorwire import collective
from tensorwire.bench.contenders.rpc import nixl
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.contender import Meeting
from tensorwire.bench.suites.weights.contender import TRAINER, Contender, Params, Rank, Weights


class _Trainer(Weights):
    def __init__(self, memory: nixl.Memory, params: Params, receivers: int) -> None:
        self._memory = memory
        self._params = params
        self._receivers = receivers

    def prepare(self, number: int) -> None:
        return

    def move(self, number: int) -> None:
        for _ in range(self._receivers):
            self._memory.notification()

    def held(self) -> Params:
        return self._params


class _Receiver(Weights):
    def __init__(self, memory: nixl.Memory, params: Params) -> None:
        self._memory = memory
        self._params = params
        self._read = memory.transfer("READ")

    def prepare(self, number: int) -> None:
        return

    def move(self, number: int) -> None:
        self._memory.wait(self._read, self._memory.agent.transfer(self._read, nixl.TAKE))

    def held(self) -> Params:
        return self._params

    def close(self) -> None:
        self._read.release()


class _Rank(Rank):
    def __init__(self, group: collective.Group, meeting: Meeting, transport: str) -> None:
        self._group = group
        self._meeting = meeting
        self._opened = 0
        # UCX does not say what it took: it is given this one transport and fails without it.
        self.path = transport
        self.note = f"UCX_TLS={os.environ['UCX_TLS']}; all ranks poll"

    def barrier(self) -> None:
        self._group.barrier()

    def open(self, work: Work, params: Params) -> Weights:
        self._opened += 1
        about = os.path.join(self._meeting.folder, f"nixl-{self._opened}")
        memory = nixl.Memory(self.path, *params.values())
        if self._meeting.rank == TRAINER:
            with open(about, "wb") as file:
                file.write(memory.about())
            self.barrier()
            return _Trainer(memory, params, self._meeting.size - 1)
        self.barrier()
        with open(about, "rb") as file:
            memory.meet(file.read())
        return _Receiver(memory, params)


class Nixl(Contender):
    packages = ("nixl",)

    def __init__(self, transport: str = "shm") -> None:
        self.transports = (transport,)

    def viable(self, transport: str) -> str | None:
        return nixl.Nixl().viable(transport)

    def variants(self) -> dict[str, Nixl]:
        return {"nixl-tcp": Nixl("tcp")} if self.transports == ("shm",) else {}

    @contextmanager
    def join(self, meeting: Meeting) -> Iterator[Rank]:
        (transport,) = self.transports
        os.environ["UCX_TLS"] = nixl.UCX_TRANSPORTS[transport]
        with collective.join(
            meeting.folder, meeting.rank, meeting.size, timeout=meeting.timeout
        ) as group:
            yield _Rank(group, meeting, transport)
