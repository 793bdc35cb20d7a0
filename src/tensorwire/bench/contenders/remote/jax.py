# SPDX-License-Identifier: Apache-2.0
"""JAX's own transfers between processes, ``jax.experimental.transfer``, over TCP. The owner offers
an array for one pull at a time, and is asked to over a socket."""

from __future__ import annotations

import itertools
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.remote.contender import (
    JAX,
    Client,
    Contender,
    Measured,
    Owner,
    making,
    source,
)

_NUMBER = struct.Struct("<Q")
_LOOPBACK = "127.0.0.1:0"


def _server() -> Any:
    from jax.experimental import transfer

    import jax

    return transfer.start_transfer_server(jax.devices()[0].client, _LOOPBACK, [_LOOPBACK])


class _Owner(Owner):
    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.server = _server()
        host, port = listener.getsockname()
        self.address = f"{host}:{port} {self.server.address()}"
        self.array: Any = None

    def prepare(self, work: Work) -> None:
        import jax

        self.array = jax.numpy.array(source(work)).block_until_ready()

    def attend(self) -> None:
        connection, _ = self.listener.accept()
        with connection, closing(connection.makefile("rb")) as asked:
            while number := asked.read(_NUMBER.size):
                self.server.await_pull(*_NUMBER.unpack(number), [self.array])


class _Client(Client):
    def __init__(self, address: str) -> None:
        listener, transfers = address.split()
        host, port = listener.rsplit(":", 1)
        self.target = host, int(port)
        self.server = _server()
        self.connection = self.server.connect(transfers)
        self.numbers = itertools.count()

    def path(self) -> str:
        return "tcp"

    @contextmanager
    def access(self, work: Work) -> Iterator[Measured]:
        with socket.create_connection(self.target) as asking:
            yield making(work, self._pull(work, asking))

    def _pull(self, work: Work, asking: socket.socket) -> Callable[[], Any]:
        jax: Any = import_module("jax")
        place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        wanted = [jax.ShapeDtypeStruct(source(work).shape, "float32", sharding=place)]

        def call() -> Any:
            number = next(self.numbers)
            asking.sendall(_NUMBER.pack(number))
            return self.connection.pull(number, wanted)[0].block_until_ready()

        return call


class Jax(Contender):
    transports = ("tcp",)
    packages = ("jax", "jaxlib")
    cases = JAX

    def join(self) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"

    def viable(self, transport: str) -> str | None:
        return None if find_spec("jax") else "jax is not installed: pip install 'tensorwire[jax]'"

    @contextmanager
    def own(self, transport: str) -> Iterator[Owner]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield _Owner(listener)

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        yield _Client(address)
