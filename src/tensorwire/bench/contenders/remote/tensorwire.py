# SPDX-License-Identifier: Apache-2.0
"""Tensorwire itself: ``tensorwire.remote``, and for arrays of JAX, which are new ones each time, a
call that answers with one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import grpc
import numpy as np
import numpy.typing as npt

import tensorwire
from tensorwire import remote, tensors
from tensorwire.bench.harness.measure import WrongAnswerError
from tensorwire.bench.harness.work import Array, Work
from tensorwire.bench.suites.remote.contender import (
    CASES,
    JAX,
    PARTS,
    PATIENCE_SECONDS,
    READS,
    Client,
    Contender,
    Measured,
    Owner,
    counting,
    making,
    parts,
    preparing,
    reading,
    source,
)
from tensorwire.remote import Add, Rights, Set
from tensorwire.transports import names, why_not

if TYPE_CHECKING:
    from tensorwire.rpc.choice import Transport

_WORKERS = 2
_STOP = 1 << 62
"""The value of a signal that ends a visit."""
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_ALL = Rights.READ | Rights.WRITE | Rights.UPDATE


class _Owner(Owner):
    def __init__(self, server: tensorwire.Server, host: remote.Host, address: str) -> None:
        self.server = server
        self.host = host
        self.address = address
        self.work = Work("read", 8)
        self.memory: remote.Exposed | None = None
        self.array: Any = None
        method: Any = grpc.unary_unary_rpc_method_handler(
            lambda request, context: self.array,
            response_serializer=cast("Any", tensors.serializer),
        )
        handler = grpc.method_handlers_generic_handler("bench.Remote", {"Array": method})
        server.add_generic_rpc_handlers((handler,))

    def prepare(self, work: Work) -> None:
        self.work = work
        if self.memory is not None:
            self.memory.conceal(PATIENCE_SECONDS)
            self.memory = None
        if work.case in JAX:
            self.array = _array(source(work), published=work.case == "jax_published")
            return
        dtype = np.uint64 if work.case == "fetch_add" else np.uint8
        values = source(work).view(dtype)
        if work.case == "prepare":
            values = values.reshape(PARTS["prepare"], -1)
        if work.case == "read_published":
            published = tensorwire.publish(values)
            self.memory = self.host.expose(published, rights=Rights.READ, name="memory")
            return
        self.memory = self.host.empty(values.shape, dtype, rights=_ALL, name="memory")
        self.memory.array[:] = values

    def attend(self) -> None:
        if self.work.case != "signal":
            return
        memory = self.memory
        assert memory is not None  # prepare() comes first
        turn, back, word = 1, None, np.ones(8, np.uint8)
        while memory.signal.wait(turn, PATIENCE_SECONDS) < _STOP:
            if back is None:  # the peer is there, and has its own memory ready
                (peer,) = self.server.peers()
                back = remote.connect(peer).open("answers")
            back.write(word, signal=Add())
            turn += 1
        if back is not None:
            back.close()


class _Client(Client):
    def __init__(
        self, channel: tensorwire.Channel, device: remote.Device, host: remote.Host
    ) -> None:
        self.device = device
        self.host = host
        array: Any = channel.unary_unary(
            "/bench.Remote/Array",
            response_deserializer=tensors.Deserializer(framework="jax"),
        )
        self._array = array

    def path(self) -> str:
        return self.device.path().transport

    def note(self) -> str:
        return self.device.path().way

    @contextmanager
    def access(self, work: Work) -> Iterator[Measured]:
        if work.case in JAX:
            yield making(work, lambda: self._array(b"").block_until_ready())
            return
        with self.device.open("memory") as there:
            if there.mapped != (self.note() == "mapped"):
                raise WrongAnswerError("the memory is reached in another way than the device's")
            if work.case == "signal":
                with self.host.empty(8, "uint8", rights=_ALL, name="answers") as answers:
                    yield counting(_signals(there, answers))
                    there.signal(Set(_STOP))
            elif work.case == "fetch_add":
                yield counting(lambda: there.fetch_add(0, 1))
            else:
                out = np.zeros(work.size // 4, np.float32)
                here = out.view(np.uint8)
                if work.case == "prepare":
                    yield preparing(work, out, lambda: self._prepared(there, here))
                else:
                    yield reading(work, out, self._read(work, there, here))

    def _read(
        self, work: Work, there: remote.RemoteTensor, out: npt.NDArray[np.uint8]
    ) -> Callable[[], object]:
        if work.case == "read_staged":
            staging = np.zeros_like(out)

            def staged() -> None:
                there.read(staging)
                np.copyto(out, staging)

            return staged
        if work.case in READS:
            return lambda: there.read(out)
        batch = self.device.batch()
        for part, here in zip(*parts(work), strict=True):
            batch.read(there[part], out[here])
        ready = batch.prepare()
        return lambda: ready.start().wait()

    def _prepared(
        self, there: remote.RemoteTensor, out: npt.NDArray[np.uint8]
    ) -> tuple[Callable[[], object], Callable[[], object]]:
        blocks = out.reshape(there.shape[0], -1)
        batch = self.device.batch()
        batch.read(there[:, : blocks.shape[1]], blocks)
        ready = batch.prepare()
        return lambda: ready.start().wait(), lambda: None


def _array(values: Array, *, published: bool) -> Any:
    """Of JAX, which takes memory of the arena as it is."""
    import jax

    placed = tensorwire.publish(values) if published else values
    return jax.device_put(placed).block_until_ready()


def _signals(there: remote.RemoteTensor, answers: remote.Exposed) -> Callable[[], int]:
    word, turn = np.ones(8, np.uint8), 0

    def call() -> int:
        nonlocal turn
        turn += 1
        there.write(word, signal=Add())
        return answers.signal.wait(turn, PATIENCE_SECONDS)

    return call


class Tensorwire(Contender):
    role = "own"
    transports = names()
    cases = frozenset(CASES)

    def join(self) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"

    def viable(self, transport: str) -> str | None:
        return why_not(transport) if transport in names() else None

    @contextmanager
    def own(self, transport: str) -> Iterator[Owner]:
        with ThreadPoolExecutor(_WORKERS) as pool:
            server = tensorwire.server(pool, options=_UNLIMITED)
            address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            with remote.host(server) as host:
                owner = _Owner(server, host, address)
                server.start()
                try:
                    yield owner
                finally:
                    server.stop(None)

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        required = cast("Transport", transport)
        with ThreadPoolExecutor(_WORKERS) as pool:
            home = tensorwire.server(pool)
            home.start()
            try:
                with (
                    remote.host(home) as host,
                    tensorwire.insecure_channel(
                        address, _UNLIMITED, transport=required, serves=home
                    ) as channel,
                    remote.connect(channel) as device,
                ):
                    yield _Client(channel, device, host)
            finally:
                home.stop(None)
