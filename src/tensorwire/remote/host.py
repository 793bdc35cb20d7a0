# SPDX-License-Identifier: Apache-2.0
"""What a process lets its peers at."""

from __future__ import annotations

import math
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from tensorwire import _core
from tensorwire.observe.measure import Measure
from tensorwire.remote import messages
from tensorwire.remote.errors import (
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    AlreadyExistsError,
    DeadlineExceededError,
    NotFoundError,
    PermissionDeniedError,
    RemoteError,
    ResourceExhaustedError,
    of_core,
)
from tensorwire.remote.exposed import CLOSE_SECONDS, Exposed, Given, conceal, given_to
from tensorwire.remote.handle import MAX_INTEGER, MAX_NAME, Handle, Rights
from tensorwire.remote.layout import dense, extents_of
from tensorwire.remote.shared import over, shared
from tensorwire.rpc import Peer, events, lifetime, registry
from tensorwire.rpc.waiting import ends_at
from tensorwire.tensors import DecodeError, dtypes, frameworks

PAGE: Final = 4096
MAX_ALLOCATIONS: Final = 4096
"""Of one peer: each has descriptors of its own."""

_CONCEAL_SECONDS: Final = 5.0
"""For a peer that gives something back, and is amid an access to it all the same."""
_EVERYTHING: Final = Rights.READ | Rights.WRITE | Rights.UPDATE

Conceal = Callable[[float | None], None]
"""Waits for peers that are amid an access, until a point of time."""


class Channel(Protocol):
    """The receiving end of one."""

    def attach(self, native: _core.Peer, asked: messages.Attach) -> messages.Attached: ...

    def detach(self, native: _core.Peer, sent: int) -> None: ...


class _Allocation(NamedTuple):
    exposed: Exposed
    peer: _core.Peer
    charge: int


class HostStats(NamedTuple):
    """What peers are let at, at one moment. Sizes are in bytes."""

    tensors: int
    """Exposed, or allocated by peers, and not concealed."""
    nbytes: int
    """Of these tensors."""
    channels: int
    """Receivers that are open."""
    peers: int
    """That have asked for something, and are alive."""
    allocations: int
    """Of the tensors, those that peers have allocated."""
    allocated: int
    """What these take of the budget."""
    budget: int
    """0: peers may not allocate."""


WATCH: Final = registry.Watch(
    "",
    HostStats,
    (
        Measure("remote_tensors", "gauge", "Tensors that peers are let at.", {"tensors": ()}),
        Measure("remote_tensor_bytes", "gauge", "Bytes of these tensors.", {"nbytes": ()}),
        Measure("remote_channels", "gauge", "Receivers that are open.", {"channels": ()}),
        Measure(
            "remote_peers",
            "gauge",
            "Peers that have asked for something, and are alive.",
            {"peers": ()},
        ),
        Measure(
            "remote_allocations", "gauge", "Tensors that peers have allocated.", {"allocations": ()}
        ),
        Measure(
            "remote_allocated_bytes",
            "gauge",
            "What they take of the budget of remote.host.",
            {"allocated": ()},
        ),
        Measure("remote_budget_bytes", "gauge", "What peers may allocate in all.", {"budget": ()}),
    ),
)


class Host(AbstractContextManager["Host"]):
    """Lets the peers of a server at memory of this process. Thread-safe. See ``host``."""

    def __init__(self, budget: int, budget_per_peer: int, may_allocate: bool) -> None:
        self._instance = secrets.token_bytes(16)
        self._generation = lifetime.generation()
        self._budget = budget
        self._budget_per_peer = budget_per_peer
        self._may_allocate = may_allocate
        self._probe = shared(8)
        self._lock = threading.RLock()  # guards what follows; never held while peers are waited for
        self._next = 1
        self._exposed: dict[int, Exposed] = {}
        self._names: dict[str, Exposed] = {}
        self._channels: dict[str, Channel] = {}
        self._allocations: dict[int, _Allocation] = {}
        self._peers: dict[_core.Peer, _core.Region | None] = {}  # with the probe, once greeted
        self._closed = False
        self._concealing: set[Conceal] = set()  # once it is closed: what peers may still access
        WATCH.members.get().add(self)

    @property
    def name(self) -> str:
        """Hosts have none."""
        return ""

    def stats(self) -> HostStats:
        """What peers have done there is counted by their links: ``server.stats()``."""
        with self._lock:
            return HostStats(
                len(self._exposed),
                sum(exposed.array.nbytes for exposed in self._exposed.values()),
                len(self._channels),
                len(self._peers),
                len(self._allocations),
                self._charged(),
                self._budget if self._may_allocate else 0,
            )

    def _charged(self) -> int:
        """Lock held."""
        return sum(each.charge for each in self._allocations.values())

    # -------------------------------------------------------------------------------- exposing

    def empty(
        self,
        shape: SupportsIndex | Iterable[SupportsIndex],
        dtype: object = np.float32,
        *,
        rights: Rights,
        name: str | None = None,
        peers: Iterable[Peer] | Mapping[Peer, Rights] | None = None,
    ) -> Exposed:
        """A tensor in memory that is made to be accessed, zeroed: processes of this host map it,
        devices reach it, and this process has no part in what they do. Its memory goes with the
        last view of the array, after ``conceal``.

        dtype: as of ``tensorwire.empty``. peers, name: as of ``expose``.

        Raises ResourceExhaustedError above TENSORWIRE_SHARED_MEMORY_BYTES; TypeError, ValueError;
        AlreadyExistsError: the name is taken.
        """
        extents = extents_of(shape)
        return self._made(extents, dtypes.parse(dtype), rights, given_to(peers, rights), name)

    def expose(
        self,
        tensor: object,
        *,
        rights: Rights = Rights.READ,
        name: str | None = None,
        peers: Iterable[Peer] | Mapping[Peer, Rights] | None = None,
    ) -> Exposed:
        """Lets peers at a tensor where it lies: of any framework, in host memory, in C order. It is
        kept until it is concealed. Processes of this host map what lies in the arena
        (``tensorwire.empty``, ``publish``) and is for reading only. All other accesses over shared
        memory and TCP go by frames, which this process serves; ``empty`` makes memory that is
        better reached.

        name: by which peers open it. peers: who may, as a mapping each with rights of its own;
        None: all peers of the server, with ``rights``.

        Raises TypeError: no tensor, or one that cannot be exposed where it is; ValueError: not in C
        order, read-only memory for more than reading, not aligned to 8 bytes for updates;
        AlreadyExistsError: the name is taken.
        """
        found = frameworks.as_host(tensor)
        if found is None:
            raise TypeError(f"a {type(tensor).__name__} is no tensor")
        array = found.array
        if found.copied:
            raise TypeError(f"a copy would be exposed, and not the tensor itself: {found.copied}")
        if not array.flags.c_contiguous:
            raise ValueError("only tensors in C order can be exposed: make it contiguous first")
        if rights & ~Rights.READ and (
            not array.flags.writeable or found.framework in (frameworks.JAX, frameworks.TENSORFLOW)
        ):
            raise ValueError(f"{rights} on memory that must not be written")
        if rights & Rights.UPDATE and array.ctypes.data % 8:
            raise ValueError("memory for updates begins at a multiple of 8 bytes")
        dtype = dtypes.own(found.dtype)
        if array.dtype != dtype:
            array = array.view(dtype)
        memory = frameworks.raw(array) if array.nbytes else b""
        return self._add(array, memory, rights, given_to(peers, rights), name)

    def _made(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        rights: Rights,
        given: Given,
        name: str | None,
    ) -> Exposed:
        memory = shared(max(_nbytes(shape, dtype), 1))
        return self._add(over(memory, shape, dtype), memory, rights, given, name)

    def _add(
        self,
        array: npt.NDArray[Any],
        memory: Any,
        rights: Rights,
        given: Given,
        name: str | None,
    ) -> Exposed:
        if why := lifetime.inherited(self._generation):
            raise RemoteError(f"peers have no way to memory here: {why}", FAILED_PRECONDITION)
        if name is not None:
            _check_name(name)
        shape, dtype = array.shape, dtypes.name_of(array.dtype)
        with self._lock:
            if self._closed:
                raise _closed()
            if name in self._names:
                raise AlreadyExistsError(f"there is something called {name!r} already")
            number = self._next
            self._next += 1
            strides = dense(shape, array.itemsize)
            handle = Handle(self._instance, number, 0, shape, strides, dtype)
            exposed = Exposed(handle, array, memory, rights, given, name, self._remove)
            self._exposed[number] = exposed
            if name is not None:
                self._names[name] = exposed
        return exposed

    def _remove(self, exposed: Exposed) -> None:
        with self._lock:
            self._exposed.pop(exposed.handle.number, None)
            if exposed.name is not None and self._names.get(exposed.name) is exposed:
                del self._names[exposed.name]

    def begin_channel(self, name: str, channel: Channel) -> None:
        """AlreadyExistsError, ValueError."""
        _check_name(name)
        with self._lock:
            if self._closed:
                raise _closed()
            if name in self._channels:
                raise AlreadyExistsError(f"there is a channel {name!r} already")
            self._channels[name] = channel

    def end_channel(self, name: str) -> None:
        with self._lock:
            self._channels.pop(name, None)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Conceals everything, as ``Exposed.conceal``; peers find nothing here any more. Raises
        DeadlineExceededError while a peer is amid an access: calling it again waits on."""
        ends = ends_at(timeout)
        WATCH.members.get().discard(self)
        with self._lock:
            self._closed = True
            self._concealing.update(exposed.conceal_until for exposed in self._exposed.values())
            for native, probe in self._peers.items():
                if probe is not None:
                    self._concealing.add(partial(conceal, native, probe))
            self._peers.clear()
            self._allocations.clear()
        with ExitStack() as closing:  # each, whatever comes of another
            for each in list(self._concealing):
                closing.callback(self._finish, each, ends)

    def _finish(self, conceal: Conceal, ends: float | None) -> None:
        conceal(ends)
        self._concealing.discard(conceal)

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------ what peers ask for

    def greet(self, native: _core.Peer) -> messages.Greeting:
        with self._lock:
            self._follow(native)
            region = self._peers[native]
            if region is None:
                try:
                    region = native.expose(self._probe, _core.MAY_READ)
                except _core.StatusError as raised:
                    raise of_core(raised, native) from None
                self._peers[native] = region
        return messages.Greeting(self._instance, region.id)

    def open(self, native: _core.Peer, asked: messages.Open) -> messages.Opened:
        with self._lock:
            self._follow(native)
            if (asked.name is None) == (asked.handle is None):
                raise RemoteError("something is opened by its name or its handle", INVALID_ARGUMENT)
            if asked.handle is None:
                exposed = self._names.get(asked.name or "")
                what = f"nothing called {asked.name!r}"
            elif asked.handle.instance != self._instance:
                raise NotFoundError(
                    "the handle is of another host: of another process, or of one that has ended"
                )
            else:
                exposed = self._exposed.get(asked.handle.number)
                what = "no such memory"
        if exposed is None:
            raise NotFoundError(f"there is {what}: it was concealed, or never there")
        return exposed.open(native)

    def allocate(self, native: _core.Peer, asked: messages.Allocate) -> messages.Opened:
        if not self._may_allocate:
            raise PermissionDeniedError(
                "peers may not allocate memory here: remote.host(server, may_allocate=True) lets "
                "them"
            )
        try:
            dtype = dtypes.resolve(asked.dtype)
            nbytes = _nbytes(asked.shape, dtype)
        except (DecodeError, ValueError) as raised:
            raise RemoteError(str(raised), INVALID_ARGUMENT) from None
        charge = PAGE + (nbytes + PAGE - 1) // PAGE * PAGE  # the word for signals has a page
        with self._lock:
            self._follow(native)
            self._check_budget(native, charge)
            given = Given({native: _EVERYTHING}, Rights(asked.shared))
            exposed = self._made(asked.shape, dtype, _EVERYTHING, given, asked.name)
            allocation = _Allocation(exposed, native, charge)
            self._allocations[exposed.handle.number] = allocation
        try:
            return exposed.open(native)
        except RemoteError:
            self._free(allocation, 0.0)
            raise

    def _check_budget(self, native: _core.Peer, charge: int) -> None:
        """Lock held."""
        own = [each.charge for each in self._allocations.values() if each.peer == native]
        for limit, used, what in (
            (self._budget, self._charged(), "budget"),
            (self._budget_per_peer, sum(own), "budget_per_peer"),
        ):
            if used + charge > limit:
                raise ResourceExhaustedError(
                    f"{charge} bytes are more than is left of the {what} of remote.host: {used} of "
                    f"{limit} bytes are taken"
                )
        if len(own) >= MAX_ALLOCATIONS:
            raise ResourceExhaustedError(f"a peer has at most {MAX_ALLOCATIONS} allocations")

    def give_back(self, native: _core.Peer, number: int, opening: int) -> None:
        """What the peer has opened, or allocated. DeadlineExceededError: it, or another peer that
        the memory was shared with, is amid an access."""
        with self._lock:
            allocation = self._allocations.get(number)
            exposed = self._exposed.get(number)
        if allocation is not None and allocation.peer == native:
            self._free(allocation, _CONCEAL_SECONDS)
        elif exposed is not None:
            exposed.close(native, opening, _CONCEAL_SECONDS)

    def attach(self, native: _core.Peer, asked: messages.Attach) -> messages.Attached:
        with self._lock:
            self._follow(native)
            channel = self._channels.get(asked.name)
        if channel is None:
            raise NotFoundError(f"there is no channel {asked.name!r}")
        return channel.attach(native, asked)

    def detach(self, native: _core.Peer, asked: messages.Detach) -> None:
        with self._lock:
            channel = self._channels.get(asked.name)
        if channel is not None:
            channel.detach(native, asked.sent)

    def _free(self, allocation: _Allocation, timeout: float | None) -> None:
        """Only once it is concealed from all, the budget has it back."""
        allocation.exposed.conceal(timeout)
        with self._lock:
            self._allocations.pop(allocation.exposed.handle.number, None)

    # ------------------------------------------------------------------------- who is gone

    def _follow(self, native: _core.Peer) -> None:
        """Lock held. Has what the peer holds given back when it is gone."""
        if self._closed:
            raise _closed()
        if native in self._peers:
            return
        here = weakref.ref(self)

        def gone() -> None:
            host = here()
            if host is not None:
                host._lost(native)

        events.watch(native, gone)
        self._peers[native] = None

    def _lost(self, native: _core.Peer) -> None:
        """By a thread that others wait for."""
        with self._lock:
            self._peers.pop(native, None)
            everything = list(self._exposed.values())
            theirs = [each for each in self._allocations.values() if each.peer == native]
        for exposed in everything:
            exposed.lost(native)
        for allocation in theirs:
            self._free_soon(allocation)

    def _free_soon(self, allocation: _Allocation) -> None:
        try:
            self._free(allocation, 0.0)
        except DeadlineExceededError:  # another peer is amid an access
            free = threading.Thread(
                target=self._free, args=(allocation, None), name="tensorwire-free", daemon=True
            )
            lifetime.start(free)


def _check_name(name: str) -> None:
    if not 0 < len(name) <= MAX_NAME:
        raise ValueError(f"a name has 1 to {MAX_NAME} characters, not {len(name)}")


def _closed() -> RemoteError:
    return RemoteError("the host was closed", FAILED_PRECONDITION)


def _nbytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    if any(extent < 0 for extent in shape):
        raise ValueError(f"negative extent in shape {shape}")
    if math.prod(extent for extent in shape if extent) * dtype.itemsize > MAX_INTEGER:
        raise ValueError(f"a tensor of shape {shape} and dtype {dtype} is too large")
    return math.prod(shape) * dtype.itemsize
