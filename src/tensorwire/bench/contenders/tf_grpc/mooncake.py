# SPDX-License-Identifier: Apache-2.0
"""Mooncake's transfer engine over TCP: the other end reads the buffers from registered memory in
one batch, after a word by a plain socket, and answers by one, as the engine has no messages of its
own. An engine for each caller and server. It listens at all interfaces, and lets anybody read, so
that all processes run in a network namespace of their own."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tensorwire.bench.contenders.rpc import mooncake as calls
from tensorwire.bench.harness.control import Control
from tensorwire.bench.suites.rpc.contender import ANSWER
from tensorwire.bench.suites.tf_grpc.contender import Client, Contender, Octets, Procedure
from tensorwire.bench.suites.tf_grpc.ranks import connected, listening
from tensorwire.bench.suites.tf_grpc.reads import Make, Memory, ReadingClient, attend


class _Engine(Memory):
    def __init__(self, engine: Any, arrays: Sequence[Octets], control: Control) -> None:
        self._engine = engine
        self._arrays = arrays
        self._control = control
        control.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer = ""
        self._places: Sequence[int] = ()
        for each in arrays:
            if engine.register_memory(each.ctypes.data, each.nbytes):
                raise ConnectionError("Mooncake did not register the memory")

    def about(self) -> dict[str, Any]:
        places = [each.ctypes.data for each in self._arrays]
        return {"port": self._engine.get_rpc_port(), "places": places}

    def meet(self, about: Mapping[str, Any]) -> None:
        self._peer = f"{calls.HOST}:{about['port']}"
        self._places = about["places"]

    def reading(self, own: slice, others: slice) -> Callable[[], object]:
        arrays, read = self._arrays[own], self._engine.batch_transfer_sync_read
        here = [each.ctypes.data for each in arrays]
        there, sizes, peer = [*self._places[others]], [each.nbytes for each in arrays], self._peer
        return lambda: calls.done(read(peer, here, there, sizes))

    def tell(self, word: bytes) -> None:
        self._control.connection.sendall(word)

    def heard(self) -> bytes:
        word = self._control.lines.read(ANSWER.size)
        if len(word) < ANSWER.size:
            raise ConnectionError("the other end has hung up in a visit")
        return word

    def release(self) -> None:
        for each in self._arrays:
            self._engine.unregister_memory(each.ctypes.data)


def _make() -> Make:
    engine = calls.Memory().engine
    return lambda arrays, control: _Engine(engine, arrays, control)


class Mooncake(Contender):
    transports = calls.Mooncake.transports
    packages = calls.Mooncake.packages
    modes = frozenset({"non-serialized"})
    pipelines: frozenset[Procedure] = frozenset({"acknowledge"})
    """Of the same payload only one echo at a time has a place to come to."""
    near = True

    def viable(self, transport: str) -> str | None:
        return calls.Mooncake().viable(transport)

    def launch(self, commands: Sequence[Sequence[str]]) -> list[list[str]]:
        every = " & ".join(shlex.join(command) for command in commands)
        return [[*calls.ALONE, f"ip link set lo up || exit; {every} & wait"]]

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        def talk(control: Control) -> None:
            attend(control, _make())

        with listening(host, port, talk) as address:
            yield address

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        with connected(address) as control:
            note = "one-sided; ends tell each other by a plain socket"
            yield ReadingClient(_make(), control, "tcp", note)
