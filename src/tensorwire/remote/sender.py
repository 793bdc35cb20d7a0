# SPDX-License-Identifier: Apache-2.0
"""The end of a channel at which tensors go in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple

import numpy as np

from tensorwire import _core
from tensorwire.remote import awaited, messages
from tensorwire.remote.device import CONTROL_SECONDS, Device
from tensorwire.remote.errors import (
    FAILED_PRECONDITION,
    INTERNAL,
    DeadlineExceededError,
    NotFoundError,
    RemoteError,
    ResourceExhaustedError,
    of_core,
)
from tensorwire.remote.exposed import conceal
from tensorwire.remote.local import Array, source
from tensorwire.remote.operation import Operation
from tensorwire.remote.shared import shared
from tensorwire.remote.signals import Add, Signal
from tensorwire.rpc.turn import Turn
from tensorwire.rpc.waiting import Bell, ends_at
from tensorwire.tensors import TensorSpec, frameworks

_SLICE_SECONDS: Final = 0.25
"""How often a sender that waits looks whether the receiver has ended."""


class _Staging(NamedTuple):
    """Memory of this process that the receiver reads a tensor from."""

    bytes: Array
    region: _core.Region


class Sender(AbstractContextManager["Sender"]):
    """The end of a channel at which tensors go in. Thread-safe. See ``sender``."""

    def __init__(self, device: Device, name: str, timeout: float) -> None:
        self._device = device
        self._name = name
        self._native: Final = device.peer.native
        self._credit = Signal()
        try:
            region = self._native.expose(self._credit.memory, _core.MAY_WRITE)
        except _core.StatusError as raised:
            raise of_core(raised, self._native) from None
        self._credit.grant(self._native, region)
        self._credit_region = region
        try:
            asked = messages.Attach(name, region.id)
            said = device._ask_for("Attach", asked, messages.Attached, timeout, self._give_up)
            self._spec = TensorSpec(said.shape, said.dtype)
            self._static = messages.is_static(self._spec)
            self._slots = device._tensor(said.slots, said.slots.handle)
            self._check_slots()
            self._depth: int = len(self._slots)
        except BaseException:
            with suppress(_core.StatusError):  # nothing begins there any more, all the same
                region.conceal(0.0)
            raise
        self._max_bytes = said.max_bytes
        self._turn = Turn()  # guards what follows
        self._sent: int = said.sent
        self._free: int = said.free
        self._pending: Operation | None = None
        self._begun: list[_core.Access] = []  # not in ``_sent`` yet
        self._staging: dict[int, _Staging] = {}
        self._detaching: Any = None  # the call that tells the receiver
        self._closed = False  # all of it has been done
        self._closing = False  # set before the turn is had: a put that waits for a slot ends

    def _give_up(self, call: Any) -> None:
        """This sender, which nobody waits for any more. By a thread that others wait for."""
        with suppress(RemoteError):
            said = self._device._answer(call.result, messages.Attached)
            self._device._tell("Detach", messages.Detach(self._name, said.sent))

    def _check_slots(self) -> None:
        slots, spec = self._slots, self._spec
        notices = (messages.NOTICE_BYTES,), np.dtype(np.uint8)
        shape, dtype = (spec.shape, spec.numpy_dtype) if self._static else notices
        some = slots.ndim > 0 and slots.shape[0] > 0
        if not some or slots.shape[1:] != shape or slots.dtype != dtype:
            raise RemoteError(
                f"the peer at {self._device.peer.address} receives {spec} in {slots.dtype}"
                f"{list(slots.shape)}, which are no slots for it",
                INTERNAL,
            )

    @property
    def spec(self) -> TensorSpec:
        """What the receiver takes."""
        return self._spec

    def put(self, value: Any, *, timeout: float | None = None) -> None:
        """Sends a tensor of any framework in host memory, which may be changed afterwards. It waits
        for a slot while the receiver has none.

        Raises TypeError and ValueError: the channel is for others; ResourceExhaustedError: larger
        than the receiver's ``max_bytes``; DeadlineExceededError: not sent, or, where the text says
        so, still under way; PeerLostError; NotFoundError: the receiver has ended. After Ctrl-C the
        tensor was sent, or nothing of it; it may still be under way, as a later ``put`` or
        ``close`` waits for it: until then do not change it.
        """
        self._credit.check_process()
        array = self._checked(value)
        ends = ends_at(timeout)
        claim = object()
        try:
            if not self._turn.acquire(claim, timeout):
                raise self._overtaken()
            self._check_open()
            self._finish(ends)
            while not self._has_slot():
                self._await_slot(ends)
            stage = self._staging_for(array)
            self._begin(array, None if stage is None else stage(ends))
            self._finish(ends)
            self._turn.release(claim)
        except BaseException:
            self._turn.release(claim)
            raise

    async def put_async(self, value: Any, *, timeout: float | None = None) -> None:
        """``put`` in a coroutine. When that is cancelled, the tensor was sent, or nothing of it."""
        self._credit.check_process()
        array = self._checked(value)
        ends = ends_at(timeout)
        claim = object()
        try:
            if not await self._turn.acquire_async(claim, timeout):
                raise self._overtaken()
            self._check_open()
            await self._finish_async(ends)
            while not self._has_slot():
                await self._await_slot_async(ends)
            stage = self._staging_for(array)  # each time that tensors have become much larger
            self._begin(array, None if stage is None else await asyncio.to_thread(stage, ends))
            await self._finish_async(ends)
            self._turn.release(claim)
        except BaseException:
            self._turn.release(claim)
            raise

    def _overtaken(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"another put into the channel {self._name!r} was under way all the time: the tensor "
            "was not sent"
        )

    def _check_open(self) -> None:
        if self._closing:
            raise RemoteError("the sender was closed", FAILED_PRECONDITION)

    def _checked(self, value: Any) -> Array:
        """In C order."""
        dtype = self._spec.numpy_dtype
        assert dtype is not None
        array = value if type(value) is np.ndarray else source(value, dtype)
        if array.dtype != dtype:
            raise TypeError(f"the channel is for {self._spec}, and this is {array.dtype}")
        if objection := self._spec.objection(self._spec.dtype or "", array.shape):
            raise ValueError(objection)
        if not self._static and array.nbytes > self._max_bytes:
            raise ResourceExhaustedError(
                f"{array.nbytes} bytes are more than the receiver's max_bytes={self._max_bytes}"
            )
        # ascontiguousarray() makes one axis of none.
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)

    # ------------------------------------------------------------------------- whoever has the turn

    def _finish(self, ends: float | None) -> None:
        """Until what is under way has ended."""
        self._count_begun()
        if self._pending is not None:
            self._pending.wait(_left(ends))
            self._pending = None

    async def _finish_async(self, ends: float | None) -> None:
        self._count_begun()
        if self._pending is not None:
            await self._pending.wait_async(_left(ends))
            self._pending = None

    @property
    def _wanted(self) -> int:
        """How many slots have to have been given back, so that one is free."""
        return self._sent - self._depth + 1

    def _has_slot(self) -> bool:
        return self._given_back(self._wanted)

    def _given_back(self, wanted: int) -> bool:
        """Whether that many slots were. NotFoundError: the receiver has ended."""
        if self._free < wanted:
            with suppress(DeadlineExceededError):
                self._free = self._credit.wait(wanted, 0.0)
        if self._free < wanted and self._receiver_ended():
            raise NotFoundError(f"the receiver of the channel {self._name!r} has ended")
        return self._free >= wanted

    def _receiver_ended(self) -> bool:
        # A tensor without bytes has no slots to look for.
        return self._native.region(self._slots._region.signal) is None

    def _await_slot(self, ends: float | None) -> None:
        """For a moment, or until there is one."""
        self._check_open()
        seconds = self._slice(ends)
        with suppress(DeadlineExceededError):
            self._credit.wait(self._wanted, seconds)

    async def _await_slot_async(self, ends: float | None) -> None:
        nudges = self._credit.memory.nudges
        self._check_open()
        await self._credit.news(self._wanted, nudges, self._slice(ends))

    def _slice(self, ends: float | None) -> float:
        left = _left(ends)
        if left == 0.0:
            raise DeadlineExceededError(
                f"the receiver of the channel {self._name!r} has no slot in time: the tensor was "
                "not sent"
            )
        return _SLICE_SECONDS if left is None else min(left, _SLICE_SECONDS)

    @property
    def _place(self) -> int:
        return self._sent % self._depth

    def _staging_for(self, array: Array) -> Callable[[float | None], _Staging] | None:
        """What makes memory that the receiver reads it from; None: there is enough, or no need."""
        if self._static or not array.nbytes:
            return None
        staging = self._staging.get(self._place)
        if staging is not None and staging.bytes.nbytes >= array.nbytes:
            return None
        self._staging.pop(self._place, None)
        return partial(self._stage, staging, array.nbytes)

    def _stage(self, old: _Staging | None, nbytes: int, ends: float | None) -> _Staging:
        """In place of memory that is too small. It needs no turn."""
        size = nbytes
        if old is not None:
            conceal(self._native, old.region, ends)
            size = min(max(nbytes, 2 * old.bytes.nbytes), max(nbytes, self._max_bytes))
        memory = shared(size)
        buffer: Any = memory
        try:
            region = self._native.expose(memory, _core.MAY_READ)
        except _core.StatusError as raised:
            raise of_core(raised, self._native) from None
        # A notice that is stored in mapped memory may overtake the news of the region; the reply to
        # a call may not.
        left = CONTROL_SECONDS if ends is None else max(0.001, ends - monotonic())
        self._device._ask("Greet", None, messages.Greeting, left)
        return _Staging(np.frombuffer(buffer, np.uint8), region)

    def _begin(self, array: Array, staged: _Staging | None) -> None:
        """staged: where the receiver reads it from now on."""
        if staged is not None:
            self._staging[self._place] = staged
        if self._static:
            slot, bytes_ = self._slots[self._place], array
        else:
            bytes_ = self._noticed(array)
            slot = self._slots[self._place, : len(bytes_)]
        operation = slot._batch(_core.WRITE, slot._source(bytes_), Add(1), self._begun)
        # Ctrl-C comes before these three or after them.
        self._pending = operation
        self._sent += 1
        self._begun.clear()

    def _count_begun(self) -> None:
        """A put that was interrupted may have begun what it did not count."""
        if self._begun:
            operation = Operation(self._native, self._begun[0])
            self._pending = operation
            self._sent += 1
            self._begun.clear()

    def _noticed(self, array: Array) -> Array:
        """Keeps the elements for the receiver; what to tell it."""
        region = 0
        if array.nbytes:
            staging = self._staging[self._place]
            staging.bytes[: array.nbytes] = np.frombuffer(frameworks.raw(array), np.uint8)
            region = staging.region.id
        said = messages.encode(messages.Notice(array.shape, region))
        notice = len(said).to_bytes(messages.LENGTH_BYTES, "little") + said
        return np.frombuffer(notice, np.uint8)

    # ------------------------------------------------------------------------------------- its end

    def close(self, timeout: float | None = CONTROL_SECONDS) -> None:
        """Tells the receiver that no more comes. Where the receiver reads tensors from here, waits
        until it has. A put that waits for a slot ends with RemoteError, in a quarter of a second.
        DeadlineExceededError: what was not read is lost, and calling it again waits for the rest;
        no error when the receiver is gone. In a forked child it does nothing."""
        if self._credit.inherited():
            return
        ends = ends_at(timeout)
        self._closing = True
        self._credit.look_again()
        claim = object()
        try:
            if not self._turn.acquire(claim, timeout):
                raise DeadlineExceededError(
                    f"a put into the channel {self._name!r} is under way: calling close again "
                    "waits on"
                )
            self._close(ends)
            self._turn.release(claim)
        except BaseException:
            self._turn.release(claim)
            raise

    async def close_async(self, timeout: float | None = CONTROL_SECONDS) -> None:
        """``close`` in a coroutine. When that is cancelled, a thread goes on."""
        await asyncio.to_thread(self.close, timeout)

    def _close(self, ends: float | None) -> None:
        """What of it ends late the next one waits for."""
        if self._closed:
            return
        with ExitStack() as closing:  # each, whatever comes of another
            closing.callback(self._conceal, ends)
            closing.callback(self._detach)
            with suppress(ConnectionError, NotFoundError):
                self._await_reads(ends)
                self._detach()
                self._await_detached(ends)
        self._staging.clear()
        self._closed = True

    def _await_reads(self, ends: float | None) -> None:
        """Of all that was put, unless it was given up before."""
        if self._native.alive and self._detaching is None:
            self._finish(ends)
            while not self._static and not self._given_back(self._sent):
                self._await_read(ends)

    def _detach(self) -> None:
        """Once only, and only from that receiver: another sender may have come since."""
        if self._detaching is None and self._native.alive and not self._receiver_ended():
            detach = messages.Detach(self._name, self._sent)
            self._detaching = self._device._begin("Detach", detach, CONTROL_SECONDS)
            self._detaching.add_done_callback(lambda _: None)  # it goes on without this sender

    def _await_detached(self, ends: float | None) -> None:
        if self._detaching is None:
            return
        bell = Bell()
        self._detaching.add_done_callback(lambda _: bell.ring())
        if not bell.wait(_left(ends)):
            raise DeadlineExceededError(
                f"the receiver of the channel {self._name!r} has not heard of its end in time: "
                "calling close again waits on"
            )
        self._device._answer(self._detaching.result, None)

    def _conceal(self, ends: float | None) -> None:
        regions = [self._credit_region]
        regions += [staging.region for staging in self._staging.values()]
        with ExitStack() as concealing:  # each, whatever comes of another
            for region in regions:
                concealing.callback(conceal, self._native, region, ends)

    def _await_read(self, ends: float | None) -> None:
        """For a moment, or until all that was put was."""
        left = _left(ends)
        if left == 0.0:
            raise DeadlineExceededError(
                f"the receiver of the channel {self._name!r} has not read all that was put"
            )
        with suppress(DeadlineExceededError):
            seconds = _SLICE_SECONDS if left is None else min(left, _SLICE_SECONDS)
            self._credit.wait(self._sent, seconds)

    def __exit__(self, *_: object) -> None:
        self.close()


def _left(ends: float | None) -> float | None:
    return None if ends is None else max(0.0, ends - monotonic())


def sender(device: Device, name: str, *, timeout: float = CONTROL_SECONDS) -> Sender:
    """The sending end of the channel that the device's process receives from under this name.

    Raises NotFoundError: there is none; AlreadyExistsError: it has a sender; PermissionDeniedError:
    not this process; PeerLostError, DeadlineExceededError, ResourceExhaustedError.
    """
    return Sender(device, name, timeout)


async def sender_async(device: Device, name: str, *, timeout: float = CONTROL_SECONDS) -> Sender:
    """``sender`` in a coroutine. When that is cancelled, the channel has no sender."""
    return await awaited.made(lambda: sender(device, name, timeout=timeout), Sender.close)
