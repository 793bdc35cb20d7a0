# SPDX-License-Identifier: Apache-2.0
"""Memory of this process that peers may access, and to whom it was given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy.typing as npt

from tensorwire import _core
from tensorwire.remote.errors import (
    DEADLINE_EXCEEDED,
    DeadlineExceededError,
    NotFoundError,
    PermissionDeniedError,
    of_core,
)
from tensorwire.remote.handle import Handle, Rights
from tensorwire.remote.messages import Opened
from tensorwire.remote.signals import Signal
from tensorwire.rpc.waiting import ends_at
from tensorwire.tensors import frameworks

if TYPE_CHECKING:
    from tensorwire.rpc import Peer

CLOSE_SECONDS: Final = 20.0
"""How long one who closes waits for peers that are amid an access, unless told otherwise."""

_RAISES = Rights.WRITE | Rights.UPDATE
_ALL = Rights.READ | Rights.WRITE | Rights.UPDATE


class _Grant(NamedTuple):
    """What the link of one peer knows. openings: those that were not closed."""

    rights: Rights
    data: _core.Region | None
    signal: _core.Region | None
    openings: frozenset[int]


class Given(NamedTuple):
    """Who may open something: these peers, and all others."""

    peers: Mapping[_core.Peer, Rights]
    others: Rights


class Exposed(AbstractContextManager["Exposed"]):
    """A tensor of this process that peers access as their rights permit, until it is concealed.

    Peers may change what is read here at any moment: what has to be trusted is copied first, and
    then looked at. Thread-safe.
    """

    def __init__(
        self,
        handle: Handle,
        array: npt.NDArray[Any],
        memory: Any,
        rights: Rights,
        given: Given,
        name: str | None,
        ended: Callable[[Exposed], None],
    ) -> None:
        """A ``Host`` makes them. memory: that of the array, as the core takes it. rights: the most
        that a peer can have. ended: told when it is concealed. ResourceExhaustedError."""
        self._handle = handle
        self._array = array
        self._memory = memory
        self._rights = rights
        self._name = name
        self._ended = ended
        self._signal = Signal() if rights & _RAISES else None
        self._others = given.others
        self._lock = threading.Lock()  # guards what follows
        self._peers = dict(given.peers)
        self._grants: dict[_core.Peer, _Grant] = {}
        self._leaving: dict[_core.Peer, list[_core.Region]] = {}  # that each may still be amid
        self._openings = 0  # of all peers, so far
        self._concealed = False

    @property
    def array(self) -> npt.NDArray[Any]:
        """The memory. It stays readable after ``conceal``."""
        return self._array

    def as_torch(self) -> Any:
        """The memory as a tensor of PyTorch, also of types that NumPy lacks. Those of JAX and
        TensorFlow are never written: make them of a copy of the array. ImportError; ValueError:
        PyTorch lacks the type, or the memory must not be written."""
        if not self._array.flags.writeable:
            raise ValueError("this memory must not be written, and PyTorch has only such that may")
        return frameworks.of_array(self._array, "torch")

    @property
    def handle(self) -> Handle:
        return self._handle

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def signal(self) -> Signal:
        """Which peers with the right to write or update raise together with what they write.
        ValueError: no peer has such a right."""
        if self._signal is None:
            raise ValueError("this memory is for reading only, and nobody raises its signal")
        return self._signal

    def grant(self, peer: Peer, rights: Rights, timeout: float | None = None) -> None:
        """Has a peer open it with these rights from now on, ``Rights.NONE``: not any more. What the
        peer has opened is concealed from it first, so that it has to open it again; this waits as
        ``conceal`` does.

        Raises ValueError for rights that the memory was not exposed with; DeadlineExceededError.
        """
        if rights & ~self._rights:
            raise ValueError(f"{rights} is more than {self._rights}, which it was exposed with")
        native = peer.native
        with self._lock:
            self._peers[native] = rights
        self._withdraw(native, ends_at(timeout))

    def conceal(self, timeout: float | None = None) -> None:
        """On return no peer reads or writes here. Accesses that come later end with
        ``NotFoundError``, and no signal is raised for them. It may be called again. By a device an
        access under way then, and one of a peer that has not heard of it yet, ends with
        ``PermissionDeniedError``, and so does that peer's link.

        timeout: seconds; None: without a limit, which the end of each peer's link is anyway. Raises
        DeadlineExceededError while a peer is amid an access: no new one begins, not of any peer,
        and calling it again waits on. The end of a ``with`` waits for 20 s.
        """
        self.conceal_until(ends_at(timeout))

    def conceal_until(self, ends: float | None) -> None:
        """As ``conceal``, until a point of time of ``time.monotonic``."""
        with self._lock:
            self._concealed = True
            peers = {*self._grants, *self._leaving}
        self._ended(self)
        if self._signal is not None:
            self._signal.end()
        with ExitStack() as withdrawing:  # from each, whatever comes of another
            for native in peers:
                withdrawing.callback(self._withdraw, native, ends)

    def _withdraw(self, native: _core.Peer, ends: float | None) -> None:
        """Raises DeadlineExceededError."""
        with self._lock:  # a peer that opens it meanwhile, or later, is granted it anew
            grant = self._grants.pop(native, None)
            if grant is not None:
                regions = [each for each in (grant.data, grant.signal) if each is not None]
                self._leaving.setdefault(native, []).extend(regions)
                if self._signal is not None:
                    self._signal.withdraw(native, lost=False)
        self._finish(native, ends)

    def _finish(self, native: _core.Peer, ends: float | None) -> None:
        """Raises DeadlineExceededError."""
        with self._lock:
            regions = list(self._leaving.get(native, ()))
        # Backwards: the signal goes first, so that nobody raises it for a write that finds nothing.
        with ExitStack() as concealing:
            for region in regions:
                concealing.callback(self._conceal, native, region, ends)

    def _conceal(self, native: _core.Peer, region: _core.Region, ends: float | None) -> None:
        conceal(native, region, ends)
        with self._lock:
            left = [each for each in self._leaving.pop(native, ()) if each is not region]
            if left:
                self._leaving[native] = left

    # ------------------------------------------------------------------------------ for the host

    def open(self, native: _core.Peer) -> Opened:
        """For a peer. NotFoundError, PermissionDeniedError, or what the core says."""
        with self._lock:
            if self._concealed:
                raise NotFoundError("it was concealed")
            rights = self._peers.get(native, self._others)
            if not rights:
                raise PermissionDeniedError("the owner has not given this process any right on it")
            grant = self._grants.get(native)
            if grant is None:
                grant = self._make(native, rights)
            opening = self._openings = self._openings + 1
            openings = grant.openings | {opening}
            grant = self._grants[native] = grant._replace(openings=openings)
        if not native.alive:  # it may have been said before that it is gone
            self.lost(native)
        return Opened(
            self._handle,
            0 if grant.data is None else grant.data.id,
            0 if grant.signal is None else grant.signal.id,
            rights.value,
            opening,
        )

    def _make(self, native: _core.Peer, rights: Rights) -> _Grant:
        try:
            data = native.expose(self._memory, rights.value) if self._array.nbytes else None
            signal = None
            if rights & _RAISES and self._signal is not None:
                signal = native.expose(self._signal.memory, _ALL.value)
                self._signal.grant(native, signal)
        except _core.StatusError as error:
            raise of_core(error, native) from None
        return _Grant(rights, data, signal, frozenset())

    def close(self, native: _core.Peer, opening: int, timeout: float) -> None:
        """For a peer that has opened it: with the last of its openings it is concealed from it. May
        be called again for one. DeadlineExceededError."""
        with self._lock:
            grant = self._grants.get(native)
            openings = frozenset[int]() if grant is None else grant.openings
            if grant is not None and openings - {opening} and opening in openings:
                self._grants[native] = grant._replace(openings=openings - {opening})
                return
        (self._withdraw if opening in openings else self._finish)(native, monotonic() + timeout)

    def lost(self, native: _core.Peer) -> None:
        """The peer is gone."""
        if self._signal is not None:
            self._signal.withdraw(native, lost=True)
        with self._lock:
            self._grants.pop(native, None)
            self._leaving.pop(native, None)
            self._peers.pop(native, None)

    def __exit__(self, *_: object) -> None:
        self.conceal(CLOSE_SECONDS)

    def __repr__(self) -> str:
        array, named = self._array, f" {self._name!r}" if self._name else ""
        return f"<tensorwire.remote.Exposed{named} {array.dtype}{list(array.shape)}>"


def conceal(native: _core.Peer, region: _core.Region, ends: float | None) -> None:
    """On return the peer does not access the region. DeadlineExceededError, when it still does at
    ``ends``."""
    try:
        region.conceal(None if ends is None else max(0.0, ends - monotonic()))
    except _core.StatusError as raised:
        if raised.code != DEADLINE_EXCEEDED:
            raise of_core(raised, native) from None
        raise DeadlineExceededError(
            f"the peer at {native.caller or native.address} is amid an access: no new one begins, "
            "and this one ends with the peer's link at the latest"
        ) from None


def given_to(peers: Iterable[Peer] | Mapping[Peer, Rights] | None, rights: Rights) -> Given:
    if peers is None:
        return Given({}, rights)
    each = peers if isinstance(peers, Mapping) else dict.fromkeys(peers, rights)
    for own in each.values():
        if own & ~rights:
            raise ValueError(f"{own} is more than rights={rights}, the most that a peer can have")
    return Given({peer.native: own for peer, own in each.items()}, Rights.NONE)
