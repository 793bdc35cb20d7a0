# SPDX-License-Identifier: Apache-2.0
"""PyTorch's RPC (``torch.distributed.rpc`` over TensorPipe): a function with a list of tensors, and
the list back or a number. What it calls goes by the name of the function, pickled; all processes
are workers that know each other, on loopback only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tensorwire.bench.contenders.rpc import torch_rpc as calls
from tensorwire.bench.suites.tf_grpc.contender import (
    PROCEDURES,
    Begin,
    Call,
    Client,
    Contender,
    Octets,
    Request,
    answer,
    buffers,
)
from tensorwire.bench.suites.tf_grpc.payloads import Payload


def _octets(tensors: Sequence[Any]) -> list[Octets]:
    return [tensor.numpy() for tensor in tensors]


def echo(tensors: list[Any], reads: bool) -> list[Any]:
    answer(_octets(tensors), reads)
    return tensors


def acknowledge(tensors: list[Any], reads: bool) -> int:
    return answer(_octets(tensors), reads)


class _Client(Client):
    def __init__(self, server: str, transport: str) -> None:
        self._server = server
        self._transport = transport

    def path(self) -> str:
        return self._transport

    @contextmanager
    def calls(self, request: Request) -> Iterator[Sequence[Call]]:
        from torch.distributed import rpc as untyped

        rpc: Any = untyped
        call, server, reads = rpc.rpc_sync, self._server, request.reads

        def made(payload: Payload) -> Call:
            arguments = _arguments(request, payload)
            if request.procedure == "echo":
                return lambda: answer(_octets(call(server, echo, args=arguments)), reads)
            return lambda: int(call(server, acknowledge, args=arguments))

        calls = {payload: made(payload) for payload in set(request.payloads)}
        yield [calls[payload] for payload in request.payloads]

    @contextmanager
    def begun(self, request: Request) -> Iterator[Sequence[Begin]]:
        from torch.distributed import rpc as untyped

        rpc: Any = untyped
        call, server, reads = rpc.rpc_async, self._server, request.reads

        def made(payload: Payload) -> Begin:
            arguments = _arguments(request, payload)

            def echoed() -> Call:
                found = call(server, echo, args=arguments)
                return lambda: answer(_octets(found.wait()), reads)

            def acknowledged() -> Call:
                found = call(server, acknowledge, args=arguments)
                return lambda: int(found.wait())

            return echoed if request.procedure == "echo" else acknowledged

        begins = {payload: made(payload) for payload in set(request.payloads)}
        yield [begins[payload] for payload in request.payloads]


def _arguments(request: Request, payload: Payload) -> tuple[list[Any], bool]:
    import torch

    return [torch.from_numpy(buffer) for buffer in buffers(payload)], request.reads


class TorchRpc(Contender):
    transports = calls.TorchRpc.transports
    packages = ("torch",)
    spins = calls.TorchRpc.spins
    modes = frozenset({"non-serialized"})
    pipelines = frozenset(PROCEDURES)
    near = True

    def __init__(self) -> None:
        self._name = ""

    def viable(self, transport: str) -> str | None:
        return calls.TorchRpc().viable(transport)

    @contextmanager
    def joined(self, transport: str, folder: str, number: int) -> Iterator[None]:
        self._name = f"worker{number}"
        with calls.joined(self._name, number, transport, os.path.join(folder, "workers")):
            yield

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        yield self._name

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        yield _Client(address, transport)
