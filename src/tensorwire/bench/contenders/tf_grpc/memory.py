# SPDX-License-Identifier: Apache-2.0
"""Limit line: nothing is sent. The caller reads the payload in its own memory as often as all
receivers of a call do: once where it is acknowledged, and of an echo once more, where it came back
to, which is other memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.tf_grpc.contender import (
    Call,
    Client,
    Contender,
    Request,
    answer,
    buffers,
)
from tensorwire.bench.suites.tf_grpc.payloads import Payload


class _Client(Client):
    def path(self) -> str:
        return "memory"

    def note(self) -> str:
        return "limit: only the reading, which rows that are read cannot do without"

    @contextmanager
    def calls(self, request: Request) -> Iterator[Sequence[Call]]:
        calls = {payload: _call(request, payload) for payload in set(request.payloads)}
        yield [calls[payload] for payload in request.payloads]


def _call(request: Request, payload: Payload) -> Call:
    sent = buffers(payload)
    if request.procedure == "acknowledge":
        return lambda: answer(sent, request.reads)
    back = buffers(payload)

    def echo() -> int:
        answer(sent, request.reads)
        return answer(back, request.reads)

    return echo


class Memory(Contender):
    role = "limit"
    transports = ("memory",)
    modes = frozenset({"non-serialized"})

    def viable(self, transport: str) -> str | None:
        return None

    def supports(self, work: Work) -> bool:
        """There is nothing to do where nobody reads."""
        return super().supports(work) and work.reads

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        yield f"{host}:{port}"

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        yield _Client()
