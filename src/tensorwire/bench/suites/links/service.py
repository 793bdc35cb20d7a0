# SPDX-License-Identifier: Apache-2.0
"""The other end of the links that are measured, which reads what it receives. As a process of its
own: ``python -m tensorwire.bench.suites.links.service``, with the path of the bench's unix
socket."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import grpc
import numpy as np

import tensorwire
from tensorwire import progress
from tensorwire.bench.harness.control import conversation
from tensorwire.bench.harness.processes import started
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


@contextmanager
def serving(address: str) -> Iterator[str]:
    """A server at ``address`` (host and port; port 0: any that is free). Yields where it is.

    RuntimeError: the address cannot be had."""
    server = tensorwire.server(ThreadPoolExecutor(_THREADS))
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


def checked(address: str) -> str:
    """``address``; ValueError where it is not a host and a port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is no HOST:PORT")
    return address


@contextmanager
def at(target: str | None) -> Iterator[str]:
    """The address of a server: ``target``, or that of a process of this host that is started, and
    ended. AgentError."""
    if target is not None:
        yield target
        return
    with started(lambda path: [[sys.executable, "-m", __name__, path]], 1) as ((_, hello),):
        yield hello["address"]


def wait_at(address: str) -> None:
    """Serves there until Ctrl-C."""
    with serving(address) as where:
        progress.say(f"tensorwire tune links: serving at {where}, until Ctrl-C")
        threading.Event().wait()


def main(path: str) -> None:
    with conversation(path) as control, serving("127.0.0.1:0") as address:
        control.send({"role": "server", "address": address})
        control.receive()  # until the bench closes it


if __name__ == "__main__":
    main(sys.argv[1])
