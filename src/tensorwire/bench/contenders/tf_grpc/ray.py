# SPDX-License-Identifier: Apache-2.0
"""Ray: a method of an actor of this host, called with a list of arrays, which go into the object
store with each call or, published, were put there before; of an echo it gives them back by the same
way. All processes are drivers of one cluster, which the first of them starts, on loopback, and each
server has an actor. Messages are pickled, and calls pass by gRPC."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tensorwire.bench.contenders.rpc import ray as calls
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

_START_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.05
"""Between two looks whether the first process has started the cluster."""


class Receiver:
    """What the actor of a server does. Arrays that it is given lie in the object store, or in the
    message where they are small."""

    def echo(self, arrays: list[Octets], reads: bool) -> list[Octets]:
        answer(arrays, reads)
        return arrays

    def acknowledge(self, arrays: list[Octets], reads: bool) -> int:
        return answer(arrays, reads)


class _Client(Client):
    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def path(self) -> str:
        return "shm"  # where the only object store of a host is

    def note(self) -> str:
        return "CPU without that of Ray's own processes and of its actors"

    @contextmanager
    def calls(self, request: Request) -> Iterator[Sequence[Call]]:
        with self.begun(request) as begins:
            yield [_whole(begin) for begin in begins]

    @contextmanager
    def begun(self, request: Request) -> Iterator[Sequence[Begin]]:
        begins = {payload: self._begin(request, payload) for payload in set(request.payloads)}
        yield [begins[payload] for payload in request.payloads]

    def _begin(self, request: Request, payload: Payload) -> Begin:
        import ray

        get, reads = ray.get, request.reads
        message: Any = buffers(payload)
        if request.origin == "published":
            message = ray.put(message)
        call = getattr(self._actor, request.procedure).remote

        def echoed() -> Call:
            found = call(message, reads)
            return lambda: answer(get(found), reads)

        def acknowledged() -> Call:
            found = call(message, reads)
            return lambda: int(get(found))

        return echoed if request.procedure == "echo" else acknowledged


def _whole(begin: Begin) -> Call:
    return lambda: begin()()


class Ray(Contender):
    transports = calls.Ray.transports
    packages = calls.Ray.packages
    modes = frozenset({"non-serialized"})
    origins = calls.Ray.origins
    pipelines = frozenset(PROCEDURES)
    near = True

    def __init__(self) -> None:
        self._name = ""

    def viable(self, transport: str) -> str | None:
        return calls.Ray().viable(transport)

    @contextmanager
    def joined(self, transport: str, folder: str, number: int) -> Iterator[None]:
        self._name = f"{calls.ACTOR}{number}"
        told = Path(folder) / "cluster"
        if number:
            token, _, cluster = _found(told).partition("@")
            with calls.joined(token, address=cluster):
                yield
            return
        token = secrets.token_hex(32)
        with calls.cluster(token) as address:
            ahead = told.with_suffix(".new")
            ahead.touch(mode=0o600)
            ahead.write_text(f"{token}@{address}")
            os.replace(ahead, told)
            yield

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        import ray

        actor = ray.remote(Receiver).options(name=self._name, num_cpus=0).remote()
        yield self._name
        del actor  # which ends it

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        import ray

        yield _Client(ray.get_actor(address))


def _found(told: Path) -> str:
    """What the first process has written."""
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        if told.exists():
            return told.read_text()
        time.sleep(_LOOK_SECONDS)
    raise ConnectionError("the first process has started no cluster of Ray")
