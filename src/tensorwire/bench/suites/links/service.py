# SPDX-License-Identifier: Apache-2.0
"""The other end of the links that are measured, which reads what it receives. As a process of its
own: ``python -m tensorwire.bench.suites.links.service``, with the path of the bench's unix
socket."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
import numpy as np

import tensorwire
from tensorwire.bench.harness.control import conversation
from tensorwire.bench.harness.processes import started
from tensorwire.bench.harness.tokens import guards
from tensorwire.rpc import segments

SERVICE: Final = "tensorwire.tune.v1.Links"
TAKE: Final = f"/{SERVICE}/Take"
"""Of a request with segments; the answer is the sum of its bytes, as ``total`` has it."""
DRAIN: Final = f"/{SERVICE}/Drain"
"""The same of a stream of requests."""
_THREADS: Final = 8


def total(buffers: Sequence[Any]) -> int:
    """The sum of all bytes, taken as 64-bit words."""
    return sum(int(np.frombuffer(buffer, np.int64).sum()) for buffer in buffers)


def answer(value: int) -> bytes:
    """How a sum travels: wrapped around."""
    return (value % (1 << 64)).to_bytes(8, "little")


def _take(buffers: Sequence[Any], context: grpc.ServicerContext) -> bytes:
    return answer(total(buffers))


def _drain(requests: Iterator[Sequence[Any]], context: grpc.ServicerContext) -> bytes:
    return answer(sum(map(total, requests)))


@segments
def _untouched(buffers: Sequence[Any]) -> Sequence[Any]:
    return buffers


@dataclass(frozen=True)
class Server:
    """address: host and port. token: that its calls show; None: it asks for none."""

    address: str
    token: str | None = None


@contextmanager
def serving(address: str, token: str | None = None) -> Iterator[str]:
    """A server at ``address`` (host and port; port 0: any that is free). Yields where it is. token:
    without which it does nothing for anybody.

    RuntimeError: the address cannot be had."""
    server = tensorwire.server(ThreadPoolExecutor(_THREADS), interceptors=guards(token))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Take": grpc.unary_unary_rpc_method_handler(_take, request_deserializer=_untouched),
        "Drain": grpc.stream_unary_rpc_method_handler(_drain, request_deserializer=_untouched),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port(address)
    server.start()
    try:
        yield f"{address.rpartition(':')[0]}:{port}"
    finally:
        server.stop(None).wait()


@contextmanager
def here() -> Iterator[Server]:
    """A process of this host, on loopback, that is started and ended. AgentError."""
    with started(lambda path: [[sys.executable, "-m", __name__, path]], 1) as ((_, hello),):
        yield Server(hello["address"])


def main(path: str) -> None:
    with conversation(path) as control, serving("127.0.0.1:0") as address:
        control.send({"role": "server", "address": address})
        control.receive()  # until the bench closes it


if __name__ == "__main__":
    main(sys.argv[1])
