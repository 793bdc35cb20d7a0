# SPDX-License-Identifier: Apache-2.0
"""Arrow Flight: record batches of one float32 column in both directions of one long exchange, which
is the cheapest thing that Flight offers (a call of its own for each batch costs more)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from tensorwire.bench.harness.work import Work, answer, payload
from tensorwire.bench.suites.rpc.contender import ANSWER, Call, Client, Contender, Server, Stream

REQUEST = b"\0" * 8


def batch_of(size: int) -> Any:
    import pyarrow as pa

    return pa.record_batch({"x": pa.array(payload(size))})


def array_in(batch: Any) -> Any:
    return batch.column(0).to_numpy()


class _Server(Server):
    def __init__(self) -> None:
        self.work = Work("request", 0)

    def prepare(self, work: Work) -> None:
        self.work = work

    def exchange(self, reader: Any, writer: Any) -> None:
        work = self.work
        writer.begin(batch_of(0).schema)
        if work.case == "pull":
            reply = batch_of(work.size)
            for _ in reader:
                writer.write_batch(reply)
        elif work.case == "request":
            for chunk in reader:
                result = answer(array_in(chunk.data), work.reads)
                writer.write_metadata(ANSWER.pack(result))
        else:
            for chunk in reader:
                (count,) = ANSWER.unpack(chunk.app_metadata)
                for _ in range(count):
                    reader.read_chunk()
                writer.write_metadata(ANSWER.pack(count))


class _Client(Client):
    def __init__(self, client: Any) -> None:
        self.client = client

    def path(self) -> str:
        return "tcp"

    @contextmanager
    def exchange(self, batch: Any) -> Iterator[tuple[Any, Any]]:
        from pyarrow import flight

        descriptor = flight.FlightDescriptor.for_command(b"")
        writer, reader = self.client.do_exchange(descriptor)
        with writer:
            writer.begin(batch.schema)
            yield writer, reader
            writer.done_writing()

    @contextmanager
    def call(self, work: Work) -> Iterator[Call]:
        import pyarrow as pa

        batch = batch_of(work.size if work.case == "request" else 0)
        with self.exchange(batch) as (writer, reader):
            reads, request = work.reads, pa.py_buffer(REQUEST)

            def push() -> int:
                writer.write_batch(batch)
                return int(ANSWER.unpack(reader.read_chunk().app_metadata)[0])

            def pull() -> int:
                writer.write_metadata(request)
                return answer(array_in(reader.read_chunk().data), reads)

            yield pull if work.case == "pull" else push

    @contextmanager
    def stream(self, work: Work) -> Iterator[Stream]:
        batch = batch_of(work.size)
        with self.exchange(batch) as (writer, reader):

            def stream(count: int) -> int:
                writer.write_metadata(ANSWER.pack(count))
                for _ in range(count):
                    writer.write_batch(batch)
                return int(ANSWER.unpack(reader.read_chunk().app_metadata)[0])

            yield stream


class Flight(Contender):
    transports = ("tcp",)
    packages = ("pyarrow",)

    def viable(self, transport: str) -> str | None:
        return None if find_spec("pyarrow") else "pyarrow is not installed: pip install pyarrow"

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        from pyarrow import flight

        server = _Server()

        class Exchanges(flight.FlightServerBase):  # type: ignore[misc]
            def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
                server.exchange(reader, writer)

        with Exchanges("grpc://127.0.0.1:0") as service:
            server.address = f"grpc://127.0.0.1:{service.port}"
            yield server

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        from pyarrow import flight

        with flight.connect(address) as client:
            yield _Client(client)
