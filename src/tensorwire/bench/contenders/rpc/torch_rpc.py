# SPDX-License-Identifier: Apache-2.0
"""PyTorch's RPC (``torch.distributed.rpc`` over TensorPipe): ``rpc_sync`` with a tensor, and a
tensor back. What it calls goes by the name of the function, pickled; loopback only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any, Final

from tensorwire import signals
from tensorwire.bench.harness.work import Work, answer, payload
from tensorwire.bench.suites.rpc.contender import Call, Client, Contender, Server, ready

_NAMES: Final = ("server", "client")
_WAYS: Final = {"shm": ("shm", "cma"), "tcp": ("uv", "basic")}
"""TensorPipe's transport for small messages, and its channel for tensors: no others are there."""
_THREADS: Final = 16


class _Replies:
    """What this process gives, in its role as the server."""

    tensor: Any = None


def take(tensor: Any) -> int:
    return answer(tensor.numpy(), False)


def add(tensor: Any) -> int:
    return answer(tensor.numpy(), True)


def give() -> Any:
    return _Replies.tensor


class _Server(Server):
    def __init__(self, address: str) -> None:
        self.address = address

    def prepare(self, work: Work) -> None:
        import torch

        size = work.size if work.case == "pull" else 0
        _Replies.tensor = torch.from_numpy(payload(size))


class _Client(Client):
    def __init__(self, transport: str) -> None:
        self.transport = transport

    def path(self) -> str:
        return self.transport

    def call(self, work: Work) -> AbstractContextManager[Call]:
        from torch.distributed import rpc

        import torch

        server, reads = _NAMES[0], work.reads
        if work.case == "pull":
            return ready(lambda: answer(rpc.rpc_sync(server, give).numpy(), reads))
        push, arguments = add if reads else take, (torch.from_numpy(payload(work.size)),)
        return ready(lambda: int(rpc.rpc_sync(server, push, args=arguments)))


@contextmanager
def joined(name: str, place: int, transport: str, file: str) -> Iterator[None]:
    """A worker, which others may join later. file: by which they meet."""
    os.environ["TP_SOCKET_IFNAME"] = "lo"
    from torch.distributed import rpc as untyped

    rpc: Any = untyped
    way, channel = _WAYS[transport]
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=_THREADS,
        init_method=f"file://{file}",
        _transports=[way],
        _channels=[channel],
    )
    rpc.init_rpc(name, rank=place, rpc_backend_options=options)
    try:
        yield
    finally:
        rpc.shutdown(graceful=False)


class TorchRpc(Contender):
    transports = tuple(_WAYS)
    packages = ("torch",)
    spins = frozenset({"shm"})  # TensorPipe looks for messages there without a pause
    cases = frozenset({"request", "pull"})

    def viable(self, transport: str) -> str | None:
        return None if find_spec("torch") else "PyTorch is not installed: pip install torch"

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        with signals.folder("tensorwire-bench-") as folder:
            file = os.path.join(folder, "workers")
            with joined(_NAMES[0], 0, transport, file):
                yield _Server(file)

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        with joined(_NAMES[1], 1, transport, address):
            yield _Client(transport)
