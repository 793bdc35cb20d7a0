# SPDX-License-Identifier: Apache-2.0
"""Servers for workers on other hosts, and where those find them. Nothing is done for whoever does
not show the token."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import grpc
import msgspec

from tensorwire import progress
from tensorwire.bench.harness.control import AgentError
from tensorwire.bench.harness.processes import started
from tensorwire.bench.harness.tokens import Token, guards, proof
from tensorwire.bench.suites.tf_grpc.agent import SERVER
from tensorwire.bench.suites.tf_grpc.cluster import Order, command
from tensorwire.bench.suites.tf_grpc.contender import find

if TYPE_CHECKING:
    from collections.abc import Iterator

_SERVICE: Final = "tensorwire.bench.Directory"
_SECONDS: Final = 10.0
"""To find the servers of another host."""
_MOST_BYTES: Final = 64 << 10
"""Of what a directory tells."""

_NO_IPV6: Final = "give a name, or an address of IPv4: some of the contenders take no other"


class Directory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ports: by the names of contenders."""

    ports: dict[str, int]


def served(names: Sequence[str]) -> list[str]:
    """The contenders that can serve others from here."""
    found = {name: find(name) for name in names}
    return [
        name
        for name, each in found.items()
        if not each.near and each.viable(each.transports[0]) is None
    ]


@contextmanager
def serving(names: Sequence[str], host: str, port: int, token: Token) -> Iterator[str]:
    """Servers of these contenders, each a process, and a directory of them; yields its address.
    port: of the directory; 0: all are free ones. AgentError when a server cannot listen."""
    found = served(names)
    for number in range(port, port + 1 + len(found)) if port else (0,):
        _check_free(host, number)

    def commands(path: str) -> list[list[str]]:
        return [
            command(
                Order(name, find(name).transports[0], SERVER, number, port and port + 1 + number),
                *(host, str(token.file), path),
            )
            for number, name in enumerate(found)
        ]

    with started(commands, len(found)) as hellos:
        ports = [int(hello["address"].rpartition(":")[2]) for _, hello in hellos]
        listed = msgspec.json.encode(Directory(dict(zip(found, ports, strict=True))))
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
            lambda request, context: listed
        )
        server = grpc.server(
            ThreadPoolExecutor(1),
            handlers=[grpc.method_handlers_generic_handler(_SERVICE, {"List": handler})],
            interceptors=guards(token.text),
        )
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise AgentError(f"cannot listen at {host}:{port}: {error}") from error
        server.start()
        try:
            yield f"{host}:{bound}"
        finally:
            server.stop(None).wait()


def _check_free(host: str, port: int) -> None:
    """AgentError where no server can listen: in one sentence, which that of a process is not."""
    if ":" in host:
        raise AgentError(f"cannot listen at {host}: {_NO_IPV6}")
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise AgentError(f"cannot listen at {host}:{port}: {why}") from None


def serve(names: Sequence[str], host: str, port: int, token: Token) -> int:
    """Until Ctrl-C; returns the command's exit code."""
    try:
        with serving(names, host, port, token) as address, suppress(KeyboardInterrupt):
            progress.say(f"serving {', '.join(served(names))} at {address}; Ctrl-C ends it")
            while True:  # pause() would not see a signal that came just ahead of it
                time.sleep(0.2)
    except AgentError as error:
        progress.say(f"tensorwire: {error}")
        return 1
    return 0


def look_up(where: Sequence[str], port: int, token: Token | None) -> dict[str, list[str]]:
    """The addresses of each contender's servers at all of these hosts, of those that all have.
    port: of hosts that name none. Raises ValueError for a host that does not answer."""
    every = []
    for place in where:
        assert token is not None
        if place.count(":") > 1:
            raise ValueError(f"{place}: {_NO_IPV6}")
        host, _, named = place.rpartition(":") if ":" in place else (place, "", str(port))
        ports = _ports(f"{host}:{named}", token)
        every.append({name: f"{host}:{number}" for name, number in ports.items()})
    names = [name for name in every[0] if all(name in each for each in every)] if every else []
    return {name: [each[name] for each in every] for name in names}


def _ports(address: str, token: Token) -> dict[str, int]:
    with grpc.insecure_channel(address) as channel:
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{_SERVICE}/List")
        try:
            told = ask(b"", metadata=proof(token.text), timeout=_SECONDS)
        except grpc.RpcError as error:
            call: Any = error  # the class that grpcio raises is a call, too
            raise ValueError(
                f"{address} does not answer ({call.code().name}: {call.details()}): is "
                "--serve running there, with this token?"
            ) from None
    if len(told) > _MOST_BYTES:
        raise ValueError(f"{address} tells {len(told)} bytes: that is no directory of a bench")
    try:
        return msgspec.json.decode(told, type=Directory).ports
    except msgspec.DecodeError as error:
        raise ValueError(f"{address} has no directory of a bench: {error}") from None
