# SPDX-License-Identifier: Apache-2.0
"""NIXL over UCX: a notification, after which the other end reads the buffers from registered memory
in one transfer, and answers by a notification. An agent for each caller and server. Both ends poll
in a visit; no status and no metadata, and who is told of an agent may read what it has
registered."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tensorwire.bench.contenders.rpc import nixl as calls
from tensorwire.bench.harness.control import Control
from tensorwire.bench.suites.tf_grpc.contender import Client, Contender, Octets, Procedure
from tensorwire.bench.suites.tf_grpc.ranks import connected, listening
from tensorwire.bench.suites.tf_grpc.reads import Make, Memory, ReadingClient, attend


class _Agent(Memory):
    def __init__(self, transport: str, arrays: Sequence[Octets]) -> None:
        self._memory = calls.Memory(transport, *arrays)
        self._handles: list[Any] = []

    def about(self) -> dict[str, Any]:
        return {"agent": self._memory.about().hex()}

    def meet(self, about: Mapping[str, Any]) -> None:
        self._memory.meet(bytes.fromhex(about["agent"]))

    def reading(self, own: slice, others: slice) -> Callable[[], object]:
        memory, agent = self._memory, self._memory.agent
        handle = memory.transfer("READ", memory.regions[own], memory.peer_regions[others])
        self._handles.append(handle)
        return lambda: memory.wait(handle, agent.transfer(handle))

    def tell(self, word: bytes) -> None:
        self._memory.agent.send_notif(self._memory.peer, word)

    def heard(self) -> bytes:
        return self._memory.notification()

    def release(self) -> None:
        for handle in self._handles:
            handle.release()


def _make(transport: str) -> Make:
    os.environ["UCX_TLS"] = calls.UCX_TRANSPORTS[transport]
    return lambda arrays, control: _Agent(transport, arrays)


class Nixl(Contender):
    transports = calls.Nixl.transports
    packages = calls.Nixl.packages
    modes = frozenset({"non-serialized"})
    pipelines: frozenset[Procedure] = frozenset({"acknowledge"})
    """Of the same payload only one echo at a time has a place to come to."""
    near = True

    def viable(self, transport: str) -> str | None:
        return calls.Nixl().viable(transport)

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        make = _make(transport)

        def talk(control: Control) -> None:
            attend(control, make)

        with listening(host, port, talk) as address:
            yield address

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        make = _make(transport)
        note = f"UCX_TLS={os.environ['UCX_TLS']}; both ends poll in a visit"
        with connected(address) as control:
            yield ReadingClient(make, control, transport, note)
