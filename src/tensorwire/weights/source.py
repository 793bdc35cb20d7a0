# SPDX-License-Identifier: Apache-2.0
"""One publisher, as a subscriber sees it: what it holds, what was agreed with it, its replies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import grpc
import msgspec
import numpy as np

from tensorwire import rpc, service, transports
from tensorwire.collective.arrays import Array
from tensorwire.tensors import dtypes
from tensorwire.tensors.errors import DecodeError
from tensorwire.tensors.tree import wire_order
from tensorwire.weights import wire
from tensorwire.weights.errors import ChecksumError, WeightsError, raise_of
from tensorwire.weights.planning import Index, Layout, Part, Shard
from tensorwire.weights.versions import crc

T = TypeVar("T")

BATCH_BYTES = 4 << 30
"""That one call asks for, unless a single part is larger."""

Room = Callable[[Part], "memoryview | None"]
"""The bytes of a part in the subscriber's parameters, which may be written from then on; None: they
do not lie together, or cannot be written."""


class RenewedError(Exception):
    """The publisher is not the one that was agreed with, or has forgotten the agreement."""


class NotThereError(Exception):
    """It has no version that was asked for now; ``newest`` is what it has."""

    def __init__(self, newest: int) -> None:
        super().__init__(newest)
        self.newest = newest


class TornError(Exception):
    """What was read in place was written meanwhile."""


class Rows(NamedTuple):
    """What is lent of a piece. cut: what of it is wanted, None: all."""

    shape: Index
    dtype: np.dtype[Any]
    nbytes: int
    cut: Any


@dataclass
class Batch:
    """What one call asks for. dtypes: of the parts; rows: of the parts, where rows are lent."""

    plan: bytes
    parts: Sequence[Part]
    dtypes: Sequence[str]
    rows: Sequence[Rows]

    @classmethod
    def of(cls, agreement: wire.Agreement, parts: Sequence[Part], layout: Layout) -> Batch:
        shards = [layout[part.name][part.piece] for part in parts]
        pairs = zip(parts, shards, strict=True)
        rows = [_rows(part, shard) for part, shard in pairs] if agreement.rows else []
        return cls(agreement.digest, parts, [shard.dtype for shard in shards], rows)


def _rows(part: Part, shard: Shard) -> Rows:
    shape = (*part.shape[:1], *shard.shape[1:])
    dtype = dtypes.own(shard.dtype)
    cut = (slice(None), *part.box()[1:]) if shape != part.shape else None
    return Rows(shape, dtype, math.prod(shape) * dtype.itemsize, cut)


@dataclass
class Landed:
    """What has come of one publisher. arrays: each part's elements, over the memory that they were
    received in, or that the publisher has lent."""

    version: int
    ticket: int = 0
    parts: list[Part] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)


class Source:
    def __init__(self, target: str | grpc.Channel, name: str) -> None:
        self._made = (
            rpc.insecure_channel(target, [("grpc.max_receive_message_length", -1)])
            if isinstance(target, str)
            else None
        )
        channel: Any = target if self._made is None else self._made
        self._channel: grpc.Channel = channel
        self.target = target if isinstance(target, str) else f"a publisher over {target!r}"
        self._name = name
        self._client: Any = service.client(wire.named(name), channel)
        self.description: wire.Description | None = None
        self.held = 0
        """The version that the subscriber's parameters have of this publisher; 0: none."""
        self._batches: list[Batch] = []
        self._rows = False

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def forget(self) -> None:
        self.description, self._batches, self.held = None, [], 0

    def describe(self, left: Callable[[], float | None]) -> wire.Description:
        if self.description is None:
            reply = self._call(self._timed(left).describe)
            self.description = self._decoded(reply, wire.Description)
        return self.description

    def agree(self, parts: Sequence[Part], left: Callable[[], float | None]) -> None:
        """Has it check what will be asked for, unless that is done, by the present way of calls."""
        described = self.describe(left)
        rows = self.lends() and not described.in_place
        if self._batches and rows == self._rows:
            return
        batches = []
        for each in _batched(parts):
            agreement = wire.Agreement.of(described, each, rows)
            self._call(self._timed(left).agree, wire.encode(agreement))
            batches.append(Batch.of(agreement, each, described.layout))
        self._batches, self._rows = batches, rows

    def lends(self) -> bool:
        """Whether what is read lies in the publisher's memory, so that nothing moves."""
        if not isinstance(self._channel, rpc.Channel):
            return False
        way = self._call(self._channel.path).transport
        return way in transports.names() and transports.is_local(way)

    def newest(self, left: Callable[[], float | None]) -> int:
        state = self._decoded(self._call(self._timed(left).state), wire.State)
        if self.description is not None and state.instance != self.description.instance:
            raise RenewedError
        return state.newest

    def pull(
        self,
        at_least: int,
        exactly: int,
        have: int,
        left: Callable[[], float | None],
        room: Room | None = None,
        writable: bool = False,
    ) -> Landed:
        """What has changed since ``have`` in a version. room: where a part may be received
        straight to. writable: the arrays may be written, which nobody else sees. Raises
        NotThereError, RenewedError, TornError."""
        described = self.describe(left)
        landed = Landed(exactly)
        for batch in self._batches:
            more = batch is not self._batches[-1]
            request = wire.Pull(batch.plan, at_least, landed.version, have, landed.ticket, more)
            if room is None or batch.rows or described.in_place:
                reply = self._opened(self._call(self._asked, wire.encode(request), left, writable))
            else:
                reply = self._received(batch, request, room, left)
            self._take(landed, batch, reply, described, left)
        return landed

    def _received(
        self, batch: Batch, request: wire.Pull, room: Room, left: Callable[[], float | None]
    ) -> tuple[wire.Pulled, list[Any]]:
        """What came, as far as possible in its room: what comes is known before."""
        looking = msgspec.structs.replace(request, more=True)
        told = self._decoded(self._call(self._timed(left).look, wire.encode(looking)), wire.Pulled)
        if not told.version:
            raise NotThereError(told.newest)
        places: list[Any] = [None]
        sizes = [1]  # of the head's elements, which goes before the arrays
        for number in told.parts:
            part = self._part(batch, number)
            places.append(room(part))
            sizes.append(dtypes.itemsize_of(batch.dtypes[number]))
        into = [None, *(places[number] for number in wire_order(sizes))]
        request = msgspec.structs.replace(
            request, at_least=told.version, exactly=told.version, ticket=told.ticket
        )

        def ask() -> Any:
            return service.with_options(self._timed(left), into=into).pull(wire.encode(request))

        head, arrays = self._opened(self._call(ask))
        if head.version and head.parts != told.parts:
            raise self._nonsense("other parts than it had told of")
        return head, arrays

    def _asked(self, request: Array, left: Callable[[], float | None], writable: bool) -> Any:
        client = self._timed(left, writable=writable)
        if self.description is None or not self.description.in_place:
            return client.pull(request)
        replies: Iterator[Any] = client.read(request)
        found = next(replies, None)
        next(replies, None)  # its end: the publisher knows that the reply has left
        return found

    def _opened(self, reply: Any) -> tuple[wire.Pulled, list[Any]]:
        if not (isinstance(reply, tuple) and len(reply) == 2 and isinstance(reply[1], list)):
            raise self._nonsense("a reply that is none")
        return self._decoded(reply[0], wire.Pulled), reply[1]

    def _part(self, batch: Batch, number: int) -> Part:
        if not 0 <= number < len(batch.parts):
            raise self._nonsense(f"part {number} of {len(batch.parts)}")
        return batch.parts[number]

    def _take(
        self,
        landed: Landed,
        batch: Batch,
        reply: tuple[wire.Pulled, list[Any]],
        described: wire.Description,
        left: Callable[[], float | None],
    ) -> None:
        head, arrays = reply
        if not head.version:
            raise NotThereError(head.newest)
        if landed.version not in (0, head.version):
            raise self._nonsense(f"version {head.version}, asked for {landed.version}")
        sums, count = head.checksums, len(head.parts)
        if len(head.places if batch.rows else arrays) != count:
            raise self._nonsense(f"{len(arrays)} arrays for {count} parts")
        if sums is not None and len(sums) != count:
            raise self._nonsense(f"{len(sums)} checksums for {count} parts")
        landed.version, landed.ticket = head.version, head.ticket
        parts = [self._part(batch, number) for number in head.parts]
        found = self._lent(batch, head, arrays) if batch.rows else arrays
        if not batch.rows:
            self._check(parts, [batch.dtypes[number] for number in head.parts], arrays)
        for part, array, expected in zip(parts, found, sums or (), strict=sums is not None):
            if crc(array) != expected:
                raise ChecksumError(
                    grpc.StatusCode.DATA_LOSS,
                    f"{self.target}: {part.name} of version {head.version} is not what was "
                    "published: its checksum is another one",
                )
        landed.parts += parts
        landed.arrays += found
        if described.in_place and not self._call(self._timed(left).intact, head.ticket):
            raise TornError

    def _check(self, parts: Sequence[Part], names: Sequence[str], arrays: Sequence[Any]) -> None:
        for part, name, array in zip(parts, names, arrays, strict=True):
            if not isinstance(array, np.ndarray) or array.shape != part.shape:
                raise self._nonsense(f"an array for {part.name} that is none of {part.shape}")
            if dtypes.name_of(array.dtype) != name:
                raise self._nonsense(f"{part.name} as {array.dtype}, not {name}")

    def _lent(self, batch: Batch, head: wire.Pulled, runs: Sequence[Any]) -> list[Array]:
        """The parts, where their rows lie."""
        for number, run in enumerate(runs):
            if not isinstance(run, np.ndarray) or run.dtype != np.uint8 or run.ndim != 1:
                raise self._nonsense(f"no bytes {number}")
        sizes = [run.size for run in runs]
        arrays = []
        for part, (number, begin) in zip(head.parts, head.places, strict=True):
            shape, dtype, nbytes, cut = batch.rows[part]
            if not 0 <= number < len(runs):
                raise self._nonsense(f"no bytes {number}")
            if not 0 <= begin <= sizes[number] - nbytes:
                raise self._nonsense(f"{sizes[number]} bytes without those from {begin} on")
            array: Array = np.ndarray(shape, dtype, runs[number], begin)
            arrays.append(array if cut is None else array[cut])
        return arrays

    # ------------------------------------------------------------------------------------- calls

    def _timed(self, left: Callable[[], float | None], **options: Any) -> Any:
        return service.with_options(self._client, timeout=left(), **options)

    def _call(self, call: Callable[..., T], *arguments: Any) -> T:
        try:
            return call(*arguments)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise RenewedError from None
            raise_of(error, self.target, self._name)
        except DecodeError as error:
            raise self._nonsense(str(error)) from None

    def _decoded(self, data: Any, kind: type[T]) -> T:
        try:
            return wire.decode(data, kind)
        except (DecodeError, ValueError) as error:
            raise self._nonsense(str(error)) from None

    def _nonsense(self, why: str) -> WeightsError:
        return WeightsError(grpc.StatusCode.INTERNAL, f"{self.target} sent {why}")


def _batched(parts: Sequence[Part]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    nbytes = 0
    for part in parts:
        if batch and (nbytes + part.nbytes > BATCH_BYTES or len(batch) == wire.MAX_PARTS):
            yield batch
            batch, nbytes = [], 0
        batch.append(part)
        nbytes += part.nbytes
    if batch:
        yield batch
