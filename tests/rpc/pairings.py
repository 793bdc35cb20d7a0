# SPDX-License-Identifier: Apache-2.0
"""Who talks to whom, and by what: every conformance test runs over all of these."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from tests.rpc.peer import make_server
from tests.rpc.service import Service
from tests.transports import HERE

import tensorwire

ROOT = Path(__file__).resolve().parents[2]


class Pairing(NamedTuple):
    client: str
    server: str
    transport: str

    def __str__(self) -> str:
        return "-".join(self)

    def channel(self, target: str, **options: Any) -> Any:
        """A context manager, and whatever either kind of channel is."""
        if self.client == "stock":
            return grpc.insecure_channel(target, **options)
        if self.server == "tensorwire":
            options.setdefault("transport", self.transport)
        return tensorwire.insecure_channel(target, **options)


DATA_PLANE = tuple(Pairing("tensorwire", "tensorwire", name) for name in HERE)
PAIRINGS = (
    Pairing("stock", "stock", "grpc"),  # holds the tests to what grpcio really does
    Pairing("stock", "tensorwire", "grpc"),
    Pairing("tensorwire", "stock", "grpc"),
    Pairing("tensorwire", "tensorwire", "grpc"),
    *DATA_PLANE,
)


@contextlib.contextmanager
def process(
    *, within: Sequence[str] = (), env: Mapping[str, str] | None = None, **order: Any
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in another process: target and process. within: a command that runs it. env: more
    variables."""
    with subprocess.Popen(
        [*within, sys.executable, "-m", "tests.rpc.peer", json.dumps(order)],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        try:
            port = child.stdout.readline().strip()
            assert port, "the server did not start"
            yield order.get("target", f"127.0.0.1:{port}"), child
        finally:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGUSR1)  # says on stderr where it hangs
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(1)
                raise
            finally:
                child.kill()


class Local(NamedTuple):
    """A server in this process."""

    target: str
    server: Any
    service: Service
    pool: ThreadPoolExecutor


@contextlib.contextmanager
def local(
    kind: str,
    *,
    workers: int = 8,
    address: str = "127.0.0.1:0",
    handlers: Sequence[grpc.GenericRpcHandler] = (),
    prepare: Callable[[Any], None] = lambda server: None,
    **options: Any,
) -> Iterator[Local]:
    service = Service()
    with ThreadPoolExecutor(workers) as pool:
        server = make_server(kind, pool, **options)
        server.add_generic_rpc_handlers((*handlers, service.handlers()))
        prepare(server)
        port = server.add_insecure_port(address)
        server.start()
        try:
            yield Local(f"127.0.0.1:{port}", server, service, pool)
        finally:
            for gate in list(service.gates.values()):
                gate.set()
            server.stop(None)
