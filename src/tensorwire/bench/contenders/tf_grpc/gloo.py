# SPDX-License-Identifier: Apache-2.0
"""Gloo, through torch.distributed: ``send`` and ``recv``, all buffers of a payload under way at
once, in a group of two ranks for each caller and server. No status and no metadata. Whoever
connects to a rank is taken for the other one, so that it is for one host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from tensorwire import signals
from tensorwire.bench.contenders.rpc import gloo as calls
from tensorwire.bench.harness.control import Control
from tensorwire.bench.suites.tf_grpc.contender import Client, Contender, Procedure, Request
from tensorwire.bench.suites.tf_grpc.ranks import (
    Attending,
    Peer,
    RankClient,
    connected,
    listening,
)

_SERVER, _CLIENT = 0, 1
_LIMIT: Final = timedelta(minutes=30)


class _Pair(Peer):
    """file: by which both ranks meet. host: of which this one has an address."""

    def __init__(self, file: str, rank: int, host: str) -> None:
        import torch.distributed as untyped

        dist: Any = untyped
        found = dist.ProcessGroupGloo
        options = found._Options()
        options._timeout = _LIMIT
        options._devices = [found.create_device(hostname=host)]
        self._group = found(dist.FileStore(file, 2), rank, 2, options)
        self._other = 1 - rank

    def wrapped(self, array: Any) -> Any:
        import torch

        return torch.from_numpy(array)

    def send(self, arrays: Sequence[Any]) -> None:
        send, other = self._group.send, self._other
        for work in [send([each], other, 0) for each in arrays]:
            work.wait()

    def receiving(self, arrays: Sequence[Any]) -> Callable[[], object]:
        receive, other = self._group.recv, self._other
        under_way = [receive([each], other, 0) for each in arrays]
        return lambda: [work.wait() for work in under_way]


class Gloo(Contender):
    transports = ("tcp",)
    packages = ("torch",)
    modes = frozenset({"non-serialized"})
    pipelines: frozenset[Procedure] = frozenset({"acknowledge"})
    """Of the same payload only one echo at a time has a place to come to."""
    near = True

    def viable(self, transport: str) -> str | None:
        return calls.Gloo().viable(transport)

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        import torch.distributed  # noqa: F401  # ahead of threads, which would import it together

        def attend(control: Control) -> None:
            file = control.receive()["file"]
            pair = _Pair(file, _SERVER, host)
            while message := control.receive():
                visit = Attending(pair, Request.from_json(message["request"]))
                control.send({"ready": True})
                while visit.call():
                    pass

        with listening(host, port, attend) as address:
            yield address

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        host = address.rpartition(":")[0]
        with signals.folder("tensorwire-bench-") as folder, connected(address) as control:
            file = os.path.join(folder, "ranks")
            control.send({"file": file})
            yield RankClient(_Pair(file, _CLIENT, host), control, "tcp")
