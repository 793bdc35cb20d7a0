# SPDX-License-Identifier: Apache-2.0
"""Which tensors are ready on all ranks: a machine without any I/O.

Each rank has one, and all of them see the same messages, so that all decide the same. A cycle:

1. ``bits()`` of all ranks, combined by bitwise and, go to ``agree()``. A bit is a request that is
   cached: all ranks have made it before, with the same arguments.
2. When a rank has requests that are not cached, ``message()`` of all ranks go to ``take()``.

Both return responses: what is to be done now, in an order that is the same on all ranks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tensorwire.collective.arrays import TYPES

Bits = npt.NDArray[np.uint64]
Key = tuple[int, str]

ALLREDUCE: Final = "allreduce"
ALLGATHER: Final = "allgather"
BROADCAST: Final = "broadcast"
ALLTOALL: Final = "alltoall"
REDUCESCATTER: Final = "reducescatter"
BARRIER: Final = "barrier"
JOIN: Final = "join"
ADD_PROCESS_SET: Final = "add_process_set"
REMOVE_PROCESS_SET: Final = "remove_process_set"
_TENSORS: Final = (ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER)
_ZEROS_DO: Final = ("sum", "average", "adasum")
"""Reductions to which a rank that has joined gives zeros."""

_NOTHING_NEW: Final = 1
_STAYS: Final = 2


class Request(msgspec.Struct, frozen=True, array_like=True):
    """What one rank asks for. ``tensors``: type and shape of each; several go together.
    ``numbers``: splits of an alltoall, or ranks of a process set."""

    kind: str
    name: str
    process_set: int = 0
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    op: str = ""
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    numbers: tuple[int, ...] = ()

    @property
    def key(self) -> Key:
        return self.process_set, self.name


@dataclass(frozen=True)
class Response:
    """What all ranks do now. ``requests`` are those of the ranks, without the ones that have
    joined; ``error`` says why it fails instead, and ``unsupported`` that all ranks ask alike for
    what there is not. ``last``: who joined last."""

    kind: str
    key: Key
    requests: Mapping[int, Request] = field(default_factory=dict)
    error: str = ""
    last: int = -1
    unsupported: bool = False

    @property
    def request(self) -> Request:
        """Of the lowest rank: what must be the same on all is there."""
        return next(iter(self.requests.values()))


@dataclass
class _Cached:
    slot: int
    requests: dict[int, Request]


_DECODER: Final = msgspec.msgpack.Decoder(tuple[Request, ...])


def check(request: Request) -> None:
    """ValueError for one that ``message()`` cannot say, or that others could not read."""
    try:
        _DECODER.decode(msgspec.msgpack.encode([request]))
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise ValueError(
            f"{request.kind} of {request.name!r} cannot be told to the other ranks: {error}"
        ) from error


class Negotiator:
    def __init__(self, rank: int, size: int, capacity: int = 1024) -> None:
        """``capacity``: of the cache, in requests; the same on all ranks."""
        self._rank = rank
        self._size = size
        self._capacity = capacity
        self.members: dict[int, tuple[int, ...]] = {0: tuple(range(size))}
        """Ranks of each process set, in order."""
        self._new: list[Request] = []
        self._hits: dict[Key, Request] = {}
        self._since: dict[Key, float] = {}  # of hits
        self._table: dict[Key, dict[int, Request]] = {}
        self._first_seen: dict[Key, float] = {}  # of the table's
        self._cache: OrderedDict[Key, _Cached] = OrderedDict()  # the least recently used first
        self._slots: list[Key | None] = []
        self._joined: list[int] = []

    # ---- this rank's requests ----

    def add(self, request: Request, now: float = 0.0) -> None:
        """A key that is not outstanding at this rank."""
        cached = self._cache.get(request.key)
        if cached is not None and cached.requests.get(self._rank) == request:
            self._hits[request.key] = request
            self._since[request.key] = now
        else:
            self._new.append(request)

    def unhit(self, before: float) -> None:
        """Says again in full what has been a bit since then: others learn who asks for it."""
        for key in [key for key, since in self._since.items() if since < before]:
            self._say_in_full(key)

    def _say_in_full(self, key: Key) -> None:
        self._since.pop(key, None)
        request = self._hits.pop(key, None)
        if request is not None:
            self._new.append(request)

    # ---- a cycle ----

    def bits(self, leaving: bool = False) -> Bits:
        """Of the same size on all ranks."""
        flags = (0 if self._new else _NOTHING_NEW) | (0 if leaving else _STAYS)
        bits = np.zeros(64 * -(-len(self._slots) // 64), np.uint8)
        for slot, key in enumerate(self._slots):
            bits[slot] = key is not None and self._agrees(key)
        packed = np.packbits(bits, bitorder="little").view(np.uint64)
        return np.concatenate([np.array([flags], np.uint64), packed])

    def _agrees(self, key: Key) -> bool:
        members = self.members.get(key[0], ())
        if set(members) <= set(self._joined):
            return False  # nobody is left to ask for it
        return key in self._hits or self._rank not in members or self._rank in self._joined

    def agree(self, bits: Bits) -> tuple[list[Response], bool, bool]:
        """What is ready, whether messages are to be exchanged, and whether a rank leaves."""
        flags = int(bits[0])
        found = np.flatnonzero(np.unpackbits(bits[1:].view(np.uint8), bitorder="little"))
        ready = []
        for slot in found:
            key = self._slots[int(slot)]
            assert key is not None
            ready.append(self._from_cache(key))
        return ready, not flags & _NOTHING_NEW, not flags & _STAYS

    def _from_cache(self, key: Key) -> Response:
        cached = self._cache[key]
        self._cache.move_to_end(key)
        self._hits.pop(key, None)
        self._since.pop(key, None)
        asking = {r: each for r, each in cached.requests.items() if r not in self._joined}
        kind = cached.requests[min(cached.requests)].kind
        return Response(kind, key, asking, self._wrong(key, asking))

    def message(self) -> bytes:
        """What is new at this rank. It counts as said."""
        new, self._new = self._new, []
        return msgspec.msgpack.encode(new)

    def take(self, messages: Sequence[bytes], now: float = 0.0) -> list[Response]:
        """The messages of all ranks, in their order."""
        for rank, message in enumerate(messages):
            for request in _DECODER.decode(message):
                if request.kind == JOIN:
                    self._joined.append(rank)
                    continue
                self._forget(request.key)
                self._table.setdefault(request.key, {})[rank] = request
                self._first_seen.setdefault(request.key, now)
        ready = [self._from_table(key) for key in list(self._table) if not self.missing(key)]
        # What is ready in a process set is done before that goes.
        ready.sort(key=lambda response: response.kind == REMOVE_PROCESS_SET)
        if len(self._joined) == self._size:
            ready.append(Response(JOIN, (0, JOIN), last=self._joined[-1]))
            self._joined.clear()
        return ready

    def missing(self, key: Key) -> list[int]:
        """Ranks that have not asked for what others have."""
        asking = self._table[key].keys() | set(self._joined)
        return [rank for rank in self.members.get(key[0], ()) if rank not in asking]

    def stalled(self, before: float) -> dict[str, list[int]]:
        """What others wait for since then, by name: the ranks that have not asked for it."""
        return {
            key[1]: self.missing(key) for key, since in self._first_seen.items() if since < before
        }

    def _from_table(self, key: Key) -> Response:
        requests = dict(sorted(self._table.pop(key).items()))
        del self._first_seen[key]
        first = next(iter(requests.values()))
        wrong = self._wrong(key, requests)
        unsupported = "" if wrong else _unsupported(first)
        response = Response(
            first.kind, key, requests, wrong or unsupported, unsupported=bool(unsupported)
        )
        everybody = len(requests) == len(self.members.get(key[0], ()))
        if not response.error and everybody and response.kind in _TENSORS:
            self._remember(key, requests)
        return response

    # ---- the cache ----

    def _remember(self, key: Key, requests: dict[int, Request]) -> None:
        if self._capacity <= 0:
            return
        if len(self._cache) >= self._capacity:
            self._forget(next(iter(self._cache)))
        if None in self._slots:
            slot = self._slots.index(None)
            self._slots[slot] = key
        else:
            slot = len(self._slots)
            self._slots.append(key)
        self._cache[key] = _Cached(slot, requests)

    def _forget(self, key: Key) -> None:
        cached = self._cache.pop(key, None)
        if cached is not None:
            self._slots[cached.slot] = None
            self._say_in_full(key)

    def forget_process_set(self, process_set: int) -> None:
        for key in [key for key in self._cache if key[0] == process_set]:
            self._forget(key)
        # Said again, what is outstanding is ready on all ranks at once, and fails.
        for key in [key for key in self._table if key[0] == process_set]:
            del self._first_seen[key]
            mine = self._table.pop(key).get(self._rank)
            if mine is not None:
                self._new.append(mine)
        self.members.pop(process_set, None)

    # ---- what disagrees ----

    def _wrong(self, key: Key, requests: Mapping[int, Request]) -> str:
        first = next(iter(requests.values()))
        if key[0] not in self.members:
            return f"{first.kind} of {key[1]!r}: its process set has been removed"
        if len(requests) < len(self.members.get(key[0], ())):
            gone = ", ".join(map(str, sorted(self._joined)))
            if first.kind != ALLREDUCE:
                return f"{first.kind} of {key[1]!r} while ranks have joined ({gone})"
            if first.op not in _ZEROS_DO:
                return f"{first.op} of {key[1]!r} while ranks have joined ({gone})"
        for name, values in _compared(requests):
            if len(set(values.values())) > 1:
                return f"ranks disagree on the {name} of {key[1]!r}: {_by_rank(values)}"
        if first.kind == BROADCAST and first.root not in self.members.get(key[0], ()):
            return (
                f"broadcast of {key[1]!r}: its root, rank {first.root}, is not in the process set"
            )
        return ""


def _compared(requests: Mapping[int, Request]) -> Iterable[tuple[str, dict[int, Any]]]:
    """What has to be the same on all ranks, in words."""

    def each(of: str) -> dict[int, Any]:
        return {rank: getattr(request, of) for rank, request in requests.items()}

    yield "operation", each("kind")
    first = next(iter(requests.values()))
    yield "types", {r: tuple(kind for kind, _ in q.tensors) for r, q in requests.items()}
    free = 1 if first.kind in (ALLGATHER, ALLTOALL) else 0  # axes that may differ
    yield "shapes", {r: tuple(shape[free:] for _, shape in q.tensors) for r, q in requests.items()}
    yield "axes", {r: tuple(len(shape) for _, shape in q.tensors) for r, q in requests.items()}
    yield "reduction", each("op")
    yield "root", each("root")
    yield "prescale_factor", each("prescale")
    yield "postscale_factor", each("postscale")
    if first.kind != ALLTOALL:
        yield "ranks", each("numbers")


def _unsupported(request: Request) -> str:
    """Why no ranks can do it."""
    for kind, shape in request.tensors:
        if kind not in TYPES:
            why = f"tensors of {kind} are not supported, those of {', '.join(TYPES)} are"
        elif kind == "bool" and request.op == "average":
            why = "bools have no average"
        elif not shape and request.kind in (ALLGATHER, ALLTOALL, REDUCESCATTER):
            why = "a tensor without axes has no rows to give"
        else:
            continue
        return f"{request.kind} of {request.name!r}: {why}"
    return ""


def _by_rank(values: Mapping[int, Any]) -> str:
    by_value: dict[Any, list[int]] = {}
    for rank, value in values.items():
        by_value.setdefault(value, []).append(rank)
    return "; ".join(
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {_shown(value)}"
        for value, ranks in by_value.items()
    )


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) and value else str(value)
