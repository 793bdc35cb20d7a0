# SPDX-License-Identifier: Apache-2.0
"""Arrow Flight: record batches of one column of bytes, a buffer in each of its rows, in both
directions of one long exchange. Arrow has such a column in one piece: buffers are joined ahead of
the calls, and that is not in their times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from tensorwire.bench.contenders.rpc import flight as batches
from tensorwire.bench.suites.tf_grpc.contender import (
    Client,
    Contender,
    Octets,
    Procedure,
    Request,
    buffers,
    octets,
)
from tensorwire.bench.suites.tf_grpc.exchange import Exchange, Exchanging, Head
from tensorwire.bench.suites.tf_grpc.messages import Messages, reply
from tensorwire.bench.suites.tf_grpc.payloads import Payload


def _batch(payload: Payload) -> Any:
    import pyarrow as pa

    column = pa.array([buffer.tobytes() for buffer in buffers(payload)], pa.large_binary())
    return pa.record_batch({"buffers": column})


def _buffers(batch: Any) -> Sequence[Octets]:
    """Of a batch that came over the wire, whose column begins where its memory does."""
    _, places, whole = batch.column(0).buffers()
    ends = np.frombuffer(places, np.int64, batch.num_rows + 1)
    joined = octets(whole)
    return [joined[begin:end] for begin, end in pairwise(ends)]


def _in_batches() -> dict[str, Messages]:
    return {"non-serialized": Messages(_batch, _buffers)}


def _attend(head: Head, reader: Any, writer: Any) -> None:
    replying = reply(_in_batches()[head.mode], head.procedure, head.reads)
    writer.begin(_batch(()).schema)
    send = writer.write_batch if head.procedure == "echo" else writer.write_metadata
    for chunk in reader:
        send(replying(chunk.data))


class _Client(Exchanging):
    def __init__(self, client: Any, token: str | None) -> None:
        super().__init__(_in_batches())
        self._client = client
        self._token = token

    def path(self) -> str:
        return "tcp"

    @contextmanager
    def exchange(self, request: Request) -> Iterator[Exchange]:
        from pyarrow import flight

        command = Head.of(request).packed(self._token)
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, reader = self._client.do_exchange(descriptor)
        read = reader.read_chunk
        with writer:
            writer.begin(_batch(()).schema)
            if request.procedure == "echo":
                yield Exchange(writer.write_batch, lambda: read().data)
            else:
                yield Exchange(writer.write_batch, lambda: read().app_metadata)
            writer.done_writing()


class Flight(Contender):
    transports = ("tcp",)
    packages = ("pyarrow",)
    modes = frozenset({"non-serialized"})
    pipelines: frozenset[Procedure] = frozenset({"acknowledge"})
    """Nobody reads echoes while batches are sent: both ends could wait for each other."""

    def viable(self, transport: str) -> str | None:
        return batches.Flight().viable(transport)

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        from pyarrow import flight

        class Exchanges(flight.FlightServerBase):  # type: ignore[misc]
            def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
                head = Head.shown(descriptor.command, token)
                if head is None:
                    raise flight.FlightUnauthenticatedError(
                        "not the server's token: give the same --token-file"
                    )
                _attend(head, reader, writer)

        with Exchanges(f"grpc://{host}:{port}") as service:
            yield f"{host}:{service.port}"

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        from pyarrow import flight

        with flight.connect(f"grpc://{address}") as client:
            yield _Client(client, token)
