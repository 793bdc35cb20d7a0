# SPDX-License-Identifier: Apache-2.0
"""Versions of parameters that other processes pull."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple

import grpc
import numpy as np

from tensorwire import _core, service
from tensorwire.observe.measure import Measure
from tensorwire.rpc import lifetime, registry
from tensorwire.rpc.waiting import ends_at
from tensorwire.service import ServiceError
from tensorwire.tensors.errors import DecodeError
from tensorwire.weights import wire
from tensorwire.weights.errors import REFUSED, WeightsError
from tensorwire.weights.holds import Holds
from tensorwire.weights.parameters import Parameters
from tensorwire.weights.planning import Shard, digest
from tensorwire.weights.versions import Store, Stored, checksums, number_of

Mode = Literal["copy", "in_place"]
Array = np.ndarray[Any, Any]
Reply = tuple[Array, list[Array]]

MAX_AGREEMENTS: Final = 1024
MAX_AGREED_PARTS: Final = 1 << 20
"""That a publisher remembers, in all; a subscriber whose agreement was forgotten makes it again."""
UPDATE_SECONDS: Final = 5.0
"""That an update in place waits for readers."""


class PublicationStats(NamedTuple):
    """A publication at one moment. Sizes are in bytes."""

    version: int
    """The newest; 0: there is none."""
    versions: int
    """That can be pulled."""
    nbytes: int
    """Of one version, of what this publisher holds of it."""
    readers: int
    """That are being sent parameters in place."""
    quota: int
    leased: int
    """Of the quota, what readers on this host hold."""
    copied: int
    """How many packs of tensors were copied for a reader so far, because the quota was used up."""
    outside: int
    """How many versions were put outside of the arena so far, because that had no room for what had
    changed: this is copied for each reader."""


WATCH: Final = registry.Watch(
    "publication",
    PublicationStats,
    (
        Measure("weights_version", "gauge", "The newest version.", {"version": ()}),
        Measure("weights_versions", "gauge", "Versions that can be pulled.", {"versions": ()}),
        Measure("weights_version_bytes", "gauge", "Bytes of one version.", {"nbytes": ()}),
        Measure(
            "weights_readers",
            "gauge",
            "Readers that are being sent parameters in place.",
            {"readers": ()},
        ),
        Measure(
            "weights_quota_bytes",
            "gauge",
            "Memory of the arena that readers on this host may hold without a copy.",
            {"quota": ()},
        ),
        Measure("weights_leased_bytes", "gauge", "What they hold of it.", {"leased": ()}),
        Measure(
            "weights_copied_packs",
            "counter",
            "Packs of tensors that were copied for a reader, because the quota was used up.",
            {"copied": ()},
        ),
        Measure(
            "weights_outside_versions",
            "counter",
            "Versions that are copied for each reader, because the arena had no room for them.",
            {"outside": ()},
        ),
    ),
)


class Publisher:
    """Lets other processes pull versions of ``params``: ``tensorwire.weights.Subscriber``.

    params: a dict, or a tree, of arrays of NumPy, PyTorch, JAX and TensorFlow in host memory, such
    as a ``state_dict``; of a DTensor, or of a JAX array that is cut among devices, what this
    process holds. shards: the boxes of global tensors that other parameters are, by name. server: a
    server of tensorwire, or of grpcio, that has not been started; its executor serves the pulls.
    name: publications of one server have different ones, and so have its relays; that of one which
    was closed is free again.

    mode: ``"copy"``: ``publish`` copies what has changed into the arena, and readers read there
    while the trainer goes on. The newest version and ``old_versions`` before it can be pulled; an
    older one lives only as long as a reader that has begun to read it. ``"in_place"``: readers are
    sent the parameters themselves, which are written inside of ``update`` only; it takes no second
    copy of them, and readers may have to wait.

    quota: bytes of the arena that readers on this host may hold without a copy (``view``, and for a
    moment ``pull``), by default ``old_versions`` + 2 whole versions. It is the publication's own:
    other traffic does not use it up. Beyond it, and where the arena has no room for a version,
    readers are sent copies, and the log says so with the setting that mends it.

    Thread-safe, but for one trainer that calls ``publish`` and ``update``. Raises ``TypeError`` and
    ``ValueError`` for parameters that cannot be published, which name the parameter; ``ValueError``
    for a name that is taken, or none.
    """

    def __init__(
        self,
        params: Any,
        server: grpc.Server,
        *,
        mode: Mode = "copy",
        name: str = "weights",
        shards: Mapping[str, Shard] | None = None,
        old_versions: int = 1,
        quota: int | None = None,
    ) -> None:
        if mode not in ("copy", "in_place"):
            raise ValueError(f"mode is 'copy' or 'in_place', not {mode!r}")
        if old_versions < 0:
            raise ValueError(f"old_versions is not negative, as {old_versions} is")
        self._shards = dict(shards or {})
        self._parameters = Parameters(params, self._shards)
        self._in_place = mode == "in_place"
        self._instance = os.urandom(16)
        self._layout = digest(self._parameters.layout)
        self._nbytes = sum(s.nbytes for every in self._parameters.layout.values() for s in every)
        if quota is None:
            quota = (old_versions + 2) * (self._nbytes + _ROUNDING * len(self._parameters.layout))
        self._name = name
        self._quota = quota
        self._store = Store(_core.Quota(quota))
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._kept: deque[Stored] = deque(maxlen=1 + (0 if self._in_place else old_versions))
        self._generation = lifetime.generation()
        self._number = 0  # of the newest version that there has been
        self._agreements: OrderedDict[bytes, wire.Agreement] = OrderedDict()
        self._tickets = 0
        self._reading: set[int] = set()  # tickets of those who read in place
        self._holds = Holds()
        self._torn_below = 0  # tickets of readers that an update did not wait for
        self._updating = False
        self._closed = False
        _serve(self, server, name)
        WATCH.members.get().add(self)

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> int:
        """The newest, 0 before the first."""
        return self._number

    def stats(self) -> PublicationStats:
        """How much moved, and which way, is counted by links: ``server.stats()``."""
        store = self._store
        with self._lock:
            return PublicationStats(
                self._number,
                len(self._kept),
                self._nbytes,
                len(self._reading),
                self._quota,
                store.quota.leased,
                store.quota.copied,
                store.outside,
            )

    def publish(
        self, version: int | None = None, *, params: Any = None, checksum: bool = False
    ) -> int:
        """Makes the parameters, as they are now, a version that can be pulled; returns its number.

        version: larger than all before; by default the next. params: the parameters from now on,
        where an optimizer makes new arrays, as those of JAX do; of the same names, shapes and
        dtypes. checksum: receivers compare a CRC-32 of each tensor.

        In place it is an ``update`` in which nothing is written. It never waits for a reader of a
        copy. Raises ``ValueError``, ``TypeError``; ``WeightsError`` in a forked child.
        """
        self._check_process()
        if self._in_place:
            with self.update(version, params=params, checksum=checksum):
                pass
            return self._number
        number = self._next(version)
        self._renew(params)
        before = self._kept[-1] if self._kept else None
        stored = self._store.copy(self._parameters, number, before, checksum)
        with self._lock:
            agreements = dict(self._agreements)
        if before is not None:
            stored.prepare(agreements, before)
        with self._lock:
            self._open()
            self._holds.expire()
            self._kept.append(stored)
            self._number = number
        return number

    @contextmanager
    def update(
        self,
        version: int | None = None,
        *,
        params: Any = None,
        checksum: bool = False,
        timeout: float = UPDATE_SECONDS,
    ) -> Iterator[None]:
        """In place: inside of it the parameters may be written; at its exit they are a new version.

        It waits for readers that are being sent the version before, at most ``timeout`` seconds:
        then it goes on, and those readers find out, and read again; no later update waits for them.
        Where its body raises, nothing is published, and pulls wait for an update that ends well.
        Raises ``RuntimeError`` for a publisher that copies, and ``WeightsError`` in a forked child.
        """
        self._check_process()
        if not self._in_place:
            raise RuntimeError("a publisher that copies has no update(): write, then publish()")
        number = self._next(version)
        ends_at(timeout)  # refuses what is no number, before anything is done
        with self._writing(timeout):
            yield
            self._renew(params)
            pieces = {name: found.pieces for name, found in self._parameters}
            since = {name: [number] * len(every) for name, every in pieces.items()}
            sums = checksums(pieces) if checksum else None
            with self._lock:
                self._kept.append(Stored(number, pieces, since, sums))
                self._number = number

    def close(self) -> None:
        """Lets go of all versions: pulls end UNAVAILABLE. Views that readers have stay good."""
        WATCH.members.get().discard(self)
        with self._lock:
            self._closed = True
            self._kept.clear()
            self._holds.clear()
            self._agreements.clear()
        _core.trim()  # a version's memory is much, and nobody may need as much within a minute

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------ the trainer's

    @contextmanager
    def _writing(self, timeout: float) -> Iterator[None]:
        """No version can be pulled, and nobody who was waited for reads. What ends the wait itself,
        such as Ctrl-C, leaves the version that there was."""
        before: list[Stored] = []
        began = False
        try:
            with self._lock:
                self._open()
                if self._updating:
                    raise RuntimeError("an update of these parameters is under way")
                before += self._kept
                # Ctrl-C comes before these two are set or after it.
                self._updating = began = True
                self._kept.clear()  # nobody begins to read it any more
                if not self._changed.wait_for(lambda: not self._awaited(), timeout):
                    self._torn_below = self._tickets + 1
            before.clear()
            yield
        finally:
            if began:
                with self._lock:
                    self._updating = False
                    self._kept.extend(() if self._closed else before)

    def _open(self) -> None:
        if self._closed:
            raise RuntimeError("the publisher is closed")

    def _check_process(self) -> None:
        if why := lifetime.inherited(self._generation):
            raise WeightsError(
                grpc.StatusCode.FAILED_PRECONDITION, f"the publisher cannot publish here: {why}"
            )

    def _next(self, version: int | None) -> int:
        number = self._number + 1 if version is None else number_of(version)
        if number <= self._number:
            raise ValueError(f"version {number} does not come after {self._number}")
        if number > _LARGEST:
            raise ValueError(f"a version is at most {_LARGEST}, not {number}")
        return number

    def _renew(self, params: Any) -> None:
        """Looks at the parameters anew: what holds their values may be another object now."""
        found = Parameters(self._parameters.tree if params is None else params, self._shards)
        if found.layout != self._parameters.layout:
            raise ValueError("parameters of other names, shapes or dtypes than those published")
        self._parameters = found

    # ------------------------------------------------------------------------------- the readers'

    def _describe(self) -> wire.Description:
        layout = {name: list(shards) for name, shards in self._parameters.layout.items()}
        return wire.Description(self._instance, self._in_place, layout)

    def _state(self) -> wire.State:
        with self._lock:
            self._check_open()
            return wire.State(self._instance, self._kept[-1].number if self._kept else 0)

    def _check_open(self) -> None:
        if self._closed:
            raise ServiceError(grpc.StatusCode.UNAVAILABLE, "the publisher is closed")

    def _agree(self, agreement: wire.Agreement) -> None:
        if agreement.instance != self._instance:
            raise _anew("the publisher is another one by now")
        if agreement.rows and self._in_place:
            raise _refused("rows are lent, and in place nothing is")
        if agreement.layout != self._layout:
            raise _refused("it was made for other parameters than are published here")
        if not agreement.holds():
            raise _refused("its digest is not that of its parts")
        if len(agreement.parts) > wire.MAX_PARTS:
            raise _refused(f"{len(agreement.parts)} parts, at most {wire.MAX_PARTS} can be")
        for part in agreement.parts:
            shards = self._parameters.layout.get(part.name, ())
            if not 0 <= part.piece < len(shards):
                raise _refused(f"{part.name[:80]!r} has no piece {part.piece}")
            shape = shards[part.piece].shape
            if not (
                len(part.start) == len(part.shape) == len(shape)
                and all(
                    at >= 0 and extent >= 0 and at + extent <= whole
                    for at, extent, whole in zip(part.start, part.shape, shape, strict=True)
                )
            ):
                raise _refused(f"a part of {part.name[:80]!r} does not lie in its piece")
        with self._lock:
            self._check_open()
            self._agreements[agreement.digest] = agreement
            self._agreements.move_to_end(agreement.digest)
            while len(self._agreements) > MAX_AGREEMENTS or self._agreed() > MAX_AGREED_PARTS:
                self._agreements.popitem(last=False)

    def _agreed(self) -> int:
        return sum(len(each.parts) for each in self._agreements.values())

    def _begin(self, request: wire.Pull) -> tuple[wire.Agreement, Stored | None, int, int]:
        """What was agreed, the version if it is there, a ticket, the newest version."""
        with self._lock:
            self._check_open()
            agreement = self._agreements.get(request.plan)
            if agreement is None:
                raise _anew("no such plan: agree on it again")
            self._agreements.move_to_end(request.plan)
            newest = self._kept[-1].number if self._kept else 0
            ticket, found = request.ticket, self._holds.take(request.ticket)
            if found is None:
                ticket = self._tickets = self._tickets + 1
                found = next(
                    (
                        each
                        for each in reversed(self._kept)
                        if each.number >= request.at_least and request.exactly in (0, each.number)
                    ),
                    None,
                )
            if found is not None:
                if self._in_place:
                    self._reading.add(ticket)
                if request.more:
                    self._holds.keep(ticket, found)
            return agreement, found, ticket, newest

    def _end(self, ticket: int) -> None:
        with self._lock:
            self._reading.discard(ticket)
            self._changed.notify_all()

    def _awaited(self) -> bool:
        """Lock held. Whether somebody reads who may still get all of one moment: who was not waited
        for once is not waited for again, or one that is stopped would delay each update."""
        return any(ticket >= self._torn_below for ticket in (*self._reading, *self._holds))

    def _intact(self, ticket: int) -> bool:
        with self._lock:
            return ticket >= self._torn_below

    def _reply(
        self, agreement: wire.Agreement, found: Stored | None, ticket: int, newest: int, have: int
    ) -> Reply:
        if found is None:
            return wire.encode(wire.Pulled(0, newest, 0, [], [], None)), []
        parts = found.reply(agreement, have)
        head = wire.Pulled(
            found.number, newest, ticket, parts.numbers, parts.places, parts.checksums
        )
        return wire.encode(head), parts.arrays


_LARGEST: Final = (1 << 63) - 1
_ROUNDING: Final = 4096
"""Bytes that a block of the arena may be larger than what lies in it."""


def _refused(why: str) -> ServiceError:
    return ServiceError(grpc.StatusCode.FAILED_PRECONDITION, f"{REFUSED}: {why}")


def _anew(why: str) -> ServiceError:
    """Has a reader ask what is published, and agree on it again."""
    return ServiceError(grpc.StatusCode.NOT_FOUND, why)


def _read(data: Any, kind: Any) -> Any:
    try:
        return wire.decode(data, kind)
    except (DecodeError, ValueError) as error:
        raise ServiceError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None


class _Served(wire.Calls):
    """Of one name at one server, which keeps its methods when a publisher is closed and another one
    made."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher

    def describe(self) -> Array:
        return wire.encode(self.publisher._describe())

    def agree(self, agreement: Array) -> None:
        self.publisher._agree(_read(agreement, wire.Agreement))

    def state(self) -> Array:
        return wire.encode(self.publisher._state())

    def look(self, request: Array) -> Array:
        return self.pull(request)[0]

    def pull(self, request: Array) -> Reply:
        publisher = self.publisher
        asked = _read(request, wire.Pull)
        if publisher._in_place:
            raise _anew("the publisher is in place by now: read, not pull")
        return publisher._reply(*publisher._begin(asked), asked.have)

    def read(self, request: Array) -> Iterator[Reply]:
        publisher = self.publisher
        asked = _read(request, wire.Pull)
        if not publisher._in_place:
            raise _anew("the publisher copies by now: pull, not read")
        agreement, found, ticket, newest = publisher._begin(asked)
        try:
            yield publisher._reply(agreement, found, ticket, newest, asked.have)
        finally:
            if found is not None:
                publisher._end(ticket)

    def intact(self, ticket: int) -> bool:
        if type(ticket) is not int:
            raise ServiceError(grpc.StatusCode.INVALID_ARGUMENT, "a ticket is a number")
        return self.publisher._intact(ticket)


_lock: Final = threading.Lock()
_served: Final[weakref.WeakKeyDictionary[grpc.Server, dict[str, _Served]]] = (
    weakref.WeakKeyDictionary()
)


def _serve(publisher: Publisher, server: grpc.Server, name: str) -> None:
    """ValueError: another one has the name."""
    with _lock:
        names = _served.setdefault(server, {})
        served = names.get(name)
        if served is None:
            made: Any = wire.named(name, _Served)
            served = made(publisher)
            service.add_to_server(served, server)
            names[name] = served
        elif served.publisher._closed:
            served.publisher = publisher
        else:
            raise ValueError(f"the server publishes {name!r} already: give this another name")
