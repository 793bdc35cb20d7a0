# SPDX-License-Identifier: Apache-2.0
"""The end of a channel at which tensors come out."""

from __future__ import annotations

import math
import operator
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final

import numpy as np

from tensorwire import _core
from tensorwire.remote import messages
from tensorwire.remote.errors import (
    INVALID_ARGUMENT,
    AlreadyExistsError,
    ChannelClosedError,
    DeadlineExceededError,
    NotFoundError,
    PeerLostError,
    RemoteError,
    ResourceExhaustedError,
)
from tensorwire.remote.exposed import CLOSE_SECONDS, Exposed
from tensorwire.remote.handle import Rights
from tensorwire.remote.host import Host
from tensorwire.remote.local import Array
from tensorwire.remote.operation import Operation
from tensorwire.rpc import Peer
from tensorwire.rpc.turn import Turn
from tensorwire.rpc.waiting import ends_at
from tensorwire.tensors import DecodeError, TensorSpec, dtypes, frameworks
from tensorwire.tensors.frameworks import Framework

_MOST_DEPTH: Final = 1024
_SLICE_SECONDS: Final = 0.05
"""How often a receiver that waits looks whether the sender has ended."""
_CLOSE_SECONDS: Final = 5.0


class _Slot:
    """Memory of a tensor that was received: the base of all views of it."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


@dataclass(slots=True)
class _Taken:
    """A tensor that a ``get`` has taken. Where that ends before it can give it, the next one does.

    held: the slot with it, if the shape is fixed. Else notice: what the sender has written; sender:
    None, it was another one, which is gone; read: what reads it, None where it has no elements;
    found: what it is read into, None before."""

    place: int
    held: _Slot | None = None
    notice: bytes = b""
    sender: _core.Peer | None = None
    read: Operation | None = None
    found: Array | None = None


class Receiver(AbstractContextManager["Receiver"]):
    """The end of a channel at which tensors come out, in the order in which they were put.
    Thread-safe. See ``receiver``."""

    def __init__(
        self, host: Host, name: str, spec: TensorSpec, depth: int, max_bytes: int, slots: Exposed
    ) -> None:
        assert spec.shape is not None
        assert spec.dtype is not None
        self._host = host
        self._name = name
        self._spec = spec
        self._dtype: Final = dtypes.own(spec.dtype)
        self._static: Final = messages.is_static(spec)
        self._depth = depth
        self._max_bytes = max_bytes
        self._slots = slots
        self._frameworks: set[Framework] = {"numpy"}  # that have this dtype
        self._turn = Turn()  # to get; guards ``_ahead``
        self._ahead: _Taken | None = None  # that no get has given so far
        # The last view of a slot may go at any place, also where the lock is held. It guards what
        # follows.
        self._lock = threading.RLock()
        self._taken = 0
        self._free = 0  # of all slots before this one the last view is gone
        self._returned: set[int] = set()
        self._sender: _core.Peer | None = None
        self._credit = 0  # the sender's region
        self._opening = 0  # that of the slots by the sender
        self._first = 0  # of the sender's tensors
        self._last: int | None = None  # the sender has ended: so many come, and no more
        self._closed = False

    @property
    def spec(self) -> TensorSpec:
        return self._spec

    def get(self, *, framework: Framework = "numpy", timeout: float | None = None) -> Any:
        """The next tensor, of the ``framework``. If its shape is fixed it lies in its slot, which
        the sender has back once the last view of it is gone, but for one of JAX, which is a copy;
        else it is a new array. It waits for a sender, too, where none has come so far: without a
        ``timeout``, for as long as that takes.

        Raises DeadlineExceededError, and no tensor is lost; ChannelClosedError after the last one;
        PeerLostError when the sender is gone and what it had put was got, until another sender
        comes; NotFoundError after ``close``; RemoteError: the sender has put what the spec does not
        permit, which is dropped; ValueError, ImportError: the framework lacks the dtype, or is not
        there.
        """
        self._check_framework(framework)
        self._slots.signal.check_process()
        ends = ends_at(timeout)
        claim = object()
        try:
            if not self._turn.acquire(claim, timeout):
                raise self._overtaken()
            while not self._there():
                left = _SLICE_SECONDS if ends is None else min(self._left(ends), _SLICE_SECONDS)
                with suppress(DeadlineExceededError):
                    self._slots.signal.wait(self._taken + 1, left)
            taken = self._take()
            if (read := self._reading(taken)) is not None:
                with self._read_to_its_end(taken):
                    read.wait(None if ends is None else max(0.0, ends - monotonic()))
            found = self._given(taken)
            self._turn.release(claim)
        except BaseException:
            self._turn.release(claim)
            raise
        return self._outwards(found, framework)

    async def get_async(
        self, *, framework: Framework = "numpy", timeout: float | None = None
    ) -> Any:
        """``get`` in a coroutine. One that is cancelled takes no tensor with it."""
        self._check_framework(framework)
        self._slots.signal.check_process()
        ends = ends_at(timeout)
        claim = object()
        try:
            if not await self._turn.acquire_async(claim, timeout):
                raise self._overtaken()
            signal = self._slots.signal
            nudges = signal.memory.nudges
            while not self._there():
                left = None if ends is None else self._left(ends)
                await signal.news(self._taken + 1, nudges, left)
                nudges = signal.memory.nudges
            taken = self._take()
            if (read := self._reading(taken)) is not None:
                with self._read_to_its_end(taken):
                    await read.wait_async(None if ends is None else max(0.0, ends - monotonic()))
            found = self._given(taken)
            self._turn.release(claim)
        except BaseException:
            self._turn.release(claim)
            raise
        return self._outwards(found, framework)

    def _check_framework(self, framework: Framework) -> None:
        """Before anything is taken. ValueError, ImportError."""
        if framework not in self._frameworks:
            frameworks.of_array(np.empty(0, self._dtype), framework)
            self._frameworks.add(framework)

    def _outwards(self, found: Array, framework: Framework) -> Any:
        # JAX lets go of memory some time after the array is gone: the slot would be missed.
        copied = self._static and framework == "jax"
        return frameworks.of_array(found.copy() if copied else found, framework)

    def _overtaken(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"another thread or coroutine was waiting for the channel {self._name!r} all the time"
        )

    def _left(self, ends: float) -> float:
        left = ends - monotonic()
        if left <= 0:
            raise DeadlineExceededError(f"the channel {self._name!r} has no tensor in time")
        return left

    def _there(self) -> bool:
        """Whether a tensor is. Raises what says that none will be."""
        if self._closed:
            raise NotFoundError(f"the channel {self._name!r} was closed")
        if self._ahead is not None:
            return True
        try:
            self._slots.signal.wait(self._taken + 1, 0.0)
        except DeadlineExceededError:
            with self._lock:
                if self._taken == self._last:
                    raise ChannelClosedError(
                        f"the sender of the channel {self._name!r} has ended"
                    ) from None
            return False
        return True

    # ------------------------------------------------------------------------- whoever has the turn

    def _take(self) -> _Taken:
        """What is there, or what a ``get`` before has not given."""
        if self._ahead is not None:
            return self._ahead
        place = self._taken
        slot = self._slots.array[place % self._depth, ...]  # a view also where it has no axes
        with self._lock:
            sender = self._sender if place >= self._first else None
            if self._static:
                taken = _Taken(place, held=_Slot(slot))
            else:  # a copy: the sender may change it while it is looked at
                taken = _Taken(place, notice=slot.tobytes(), sender=sender)
            # Ctrl-C comes before these two or after them.
            self._ahead = taken
            self._taken = place + 1
        return taken

    def _given(self, taken: _Taken) -> Array:
        """What was taken, and is here: from now on it is the caller's."""
        found = taken.found
        if taken.held is not None:
            returned = weakref.finalize(taken.held, _give_back, weakref.ref(self), taken.place)
            returned.atexit = False
            found = np.asarray(taken.held)
            found = found if found.dtype == self._dtype else found.view(self._dtype)
        else:
            self._give_back(taken.place)
        assert found is not None
        self._ahead = None
        return found

    def _drop(self, taken: _Taken) -> None:
        self._give_back(taken.place)
        self._ahead = None

    def _reading(self, taken: _Taken) -> Operation | None:
        """What reads it, begun once; None: nothing has to be read. What cannot be is dropped."""
        if taken.held is None and taken.found is None:
            try:
                # Ctrl-C comes before these two are set or after it.
                taken.read, taken.found = self._begin_reading(taken)
            except RemoteError:
                self._drop(taken)
                raise
        return taken.read

    @contextmanager
    def _read_to_its_end(self, taken: _Taken) -> Iterator[None]:
        """For who waits for it. Its slot goes back only after the end, whoever waits then."""
        try:
            yield
        except DeadlineExceededError:
            raise DeadlineExceededError(
                f"the channel {self._name!r} has no tensor in time: one is being read, and the "
                "next get waits on for it"
            ) from None
        except RemoteError:
            self._drop(taken)
            raise

    def _begin_reading(self, told: _Taken) -> tuple[Operation | None, Array]:
        """What reads a tensor, None: it has no elements; and the new array."""
        try:
            size = int.from_bytes(told.notice[: messages.LENGTH_BYTES], "little")
            notice = told.notice[messages.LENGTH_BYTES :][:size]
            said = messages.decode(notice, messages.Notice)
        except DecodeError as error:
            raise RemoteError(f"the sender has put {error}", INVALID_ARGUMENT) from None
        objection = self._spec.objection(dtypes.name_of(self._dtype), said.shape)
        if objection:
            raise RemoteError(f"the sender of {self._name!r}: {objection}", INVALID_ARGUMENT)
        nbytes = math.prod(said.shape) * self._dtype.itemsize
        if nbytes > self._max_bytes:
            raise ResourceExhaustedError(
                f"the sender of {self._name!r} has put {nbytes} bytes, and max_bytes is "
                f"{self._max_bytes}"
            )
        found = np.empty(said.shape, self._dtype)
        if nbytes == 0:
            return None, found
        sender = told.sender
        if sender is None:
            raise PeerLostError(f"the sender of the channel {self._name!r} is gone")
        start = partial(sender.access, _core.READ, said.region, 0, frameworks.raw(found))
        return Operation.begin(sender, start, (said.region,)), found

    # ------------------------------------------------------------------------------------- its end

    def _give_back(self, place: int) -> None:
        """The slot may be written again, once those before it may. May be called again."""
        with self._lock:
            if place >= self._free:
                self._returned.add(place)
            while self._free in self._returned:
                self._returned.remove(self._free)
                self._free += 1
            if self._sender is None:
                return
            with suppress(_core.StatusError):  # it is gone, and get() says so
                free = np.array([self._free], np.uint64)
                self._sender.access(_core.WRITE, self._credit, 0, free.data)

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """The sender's puts end with NotFoundError from now on. What was got stays readable.

        Raises DeadlineExceededError while the sender is amid a put: no other one begins, and
        calling it again waits on. In a forked child it does nothing.
        """
        if self._slots.signal.inherited():
            return
        if not self._closed:  # the name may be another channel's afterwards
            self._closed = True
            self._host.end_channel(self._name)
        self._slots.conceal(timeout)

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------ for the host

    def attach(self, native: _core.Peer, asked: messages.Attach) -> messages.Attached:
        with self._lock:
            if self._sender is not None and self._sender.alive and self._taken != self._last:
                raise AlreadyExistsError(f"the channel {self._name!r} has a sender")
            self._begin_anew()
            opened = self._slots.open(native)
            self._sender, self._credit, self._opening = native, asked.credit, opened.opening
            self._first, self._last = self._slots.signal.value, None
            assert self._spec.shape is not None
            return messages.Attached(
                opened,
                tuple(self._spec.shape),
                dtypes.name_of(self._dtype),
                self._max_bytes,
                self._first,
                self._free,
            )

    def _begin_anew(self) -> None:
        """Lock held. The sender before may have given the signal any value: one that no sender
        could reach by what it puts would keep the next one from sending."""
        if self._sender is not None and not self._sender.alive:
            self._slots.lost(self._sender)
        if not self._taken <= self._slots.signal.value <= self._free + self._depth:
            self._slots.signal.set(self._taken)

    def detach(self, native: _core.Peer, sent: int) -> None:
        with self._lock:
            if self._sender != native:
                return
            self._last = sent
            opening = self._opening
        self._slots.close(native, opening, _CLOSE_SECONDS)


def _give_back(receiver: weakref.ref[Receiver], place: int) -> None:
    there = receiver()
    if there is not None:
        there._give_back(place)


def _whole(name: str, value: int) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} is a whole number, not {value}")
    return operator.index(value)


def receiver(
    host: Host,
    name: str,
    spec: TensorSpec,
    *,
    depth: int = 2,
    max_bytes: int = 1 << 30,
    peers: Iterable[Peer] | None = None,
) -> Receiver:
    """The receiving end of a channel that one peer of the host's server at a time may send to, by
    ``sender``.

    If each extent of the shape is known, tensors are written into ``depth`` slots that are placed
    here ahead, and a word tells of them. Else the sender writes what a tensor is and where it lies,
    and it is read from there, into new memory. (The two transfers of Xue et al., Fast Distributed
    Deep Learning over RDMA, EuroSys 2019, section 3.)

    depth: how many tensors may be under way, or in use here; then senders wait. max_bytes: of a
    tensor whose shape is not known. peers: who may send; None: all peers of the server.

    Raises AlreadyExistsError: the name is taken; ResourceExhaustedError; TypeError, ValueError.
    """
    depth, max_bytes = _whole("depth", depth), _whole("max_bytes", max_bytes)
    if max_bytes < 0:
        raise ValueError(f"max_bytes is not negative, as {max_bytes} is")
    if spec.shape is None or spec.dtype is None:
        raise ValueError(f"a channel needs a number of axes and a dtype, not {spec}")
    if not 0 < depth <= _MOST_DEPTH:
        raise ValueError(f"a channel has 1 to {_MOST_DEPTH} slots, not {depth}")
    shape: tuple[int, ...] = (messages.NOTICE_BYTES,)
    dtype: object = np.uint8
    if messages.is_static(spec):
        shape, dtype = tuple(extent or 0 for extent in spec.shape), spec.dtype
    slots = host.empty((depth, *shape), dtype, rights=Rights.WRITE, peers=peers)
    made = Receiver(host, name, spec, depth, max_bytes, slots)
    try:
        host.begin_channel(name, made)
    except BaseException:
        slots.conceal()
        raise
    return made
