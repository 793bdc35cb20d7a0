# SPDX-License-Identifier: Apache-2.0
"""The end of a channel at which tensors go in."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack, suppress
from time import monotonic
from typing import Any, Final, NamedTuple

import numpy as np

from tensorwire import _core
from tensorwire.remote import messages, turns
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
from tensorwire.remote.signals import Add, Signal, shared
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
            said = device._ask("Attach", asked, messages.Attached, timeout)
            self._spec = TensorSpec(said.shape, said.dtype)
            self._static = messages.is_static(self._spec)
            self._slots = device._tensor(said.slots, said.slots.handle)
            self._check_slots()
        except BaseException:
            with suppress(_core.StatusError):  # nothing begins there any more, all the same
                region.conceal(0.0)
            raise
        self._max_bytes = said.max_bytes
        self._lock = threading.Lock()  # guards what follows
        self._sent = said.sent
        self._free = said.free
        self._pending: Operation | None = None
        self._staging: dict[int, _Staging] = {}
        self._closed = False
        self._closing = (
            False  # set before the lock is had, so that a put that waits for a slot ends
        )

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
        so, still under way; PeerLostError; NotFoundError: the receiver has ended.
        """
        array = np.ascontiguousarray(self._checked(value))
        ends = None if timeout is None else monotonic() + timeout
        turns.take(
            self._lock,
            ends,
            f"another put into the channel {self._name!r} was under way all the time: the tensor "
            "was not sent",
        )
        try:
            self._check_open()
            self._finish(ends)
            try:
                self._await_free(self._sent - len(self._slots) + 1, ends)
            except DeadlineExceededError:
                raise DeadlineExceededError(
                    f"the receiver of the channel {self._name!r} has no slot in time: the tensor "
                    "was not sent"
                ) from None
            place = self._sent % len(self._slots)
            if self._static:
                slot, bytes_ = self._slots[place], array
            else:
                bytes_ = self._noticed(place, array, ends)
                slot = self._slots[place, : len(bytes_)]
            self._pending = slot.start_write(bytes_, signal=Add(1))
            self._sent += 1
            self._finish(ends)
        finally:
            self._lock.release()

    def _check_open(self) -> None:
        if self._closing:
            raise RemoteError("the sender was closed", FAILED_PRECONDITION)

    def _checked(self, value: Any) -> Array:
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
        return array

    def _finish(self, ends: float | None) -> None:
        if self._pending is not None:
            self._pending.wait(None if ends is None else max(0.0, ends - monotonic()))
            self._pending = None

    def _await_free(self, needed: int, ends: float | None) -> None:
        """Until so many slots were given back. NotFoundError: the receiver has ended."""
        while self._free < needed:
            left = _SLICE_SECONDS if ends is None else ends - monotonic()
            try:
                self._free = self._credit.wait(needed, min(max(0.0, left), _SLICE_SECONDS))
            except DeadlineExceededError:
                if not self._closed:
                    self._check_open()
                number = self._slots._region.number
                if number and self._native.region(number) is None:
                    raise NotFoundError(
                        f"the receiver of the channel {self._name!r} has ended"
                    ) from None
                if ends is not None and monotonic() >= ends:
                    raise

    def _noticed(self, place: int, array: Array, ends: float | None) -> Array:
        """Keeps the elements for the receiver; what to tell it."""
        region = 0
        if array.nbytes:
            staging = self._staging.get(place)
            if staging is None or staging.bytes.nbytes < array.nbytes:
                self._staging.pop(place, None)
                staging = self._staging[place] = self._stage(staging, array.nbytes, ends)
            staging.bytes[: array.nbytes] = np.frombuffer(frameworks.raw(array), np.uint8)
            region = staging.region.id
        said = messages.encode(messages.Notice(array.shape, region))
        notice = len(said).to_bytes(messages.LENGTH_BYTES, "little") + said
        return np.frombuffer(notice, np.uint8)

    def _stage(self, old: _Staging | None, nbytes: int, ends: float | None) -> _Staging:
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

    def close(self, timeout: float | None = CONTROL_SECONDS) -> None:
        """Tells the receiver that no more comes. Where the receiver reads tensors from here, waits
        until it has. A put that waits for a slot ends with RemoteError, in a quarter of a second.
        May be called again. DeadlineExceededError, and what was not read is lost; no error when the
        receiver is gone."""
        ends = None if timeout is None else monotonic() + timeout
        self._closing = True
        turns.take(
            self._lock,
            ends,
            f"a put into the channel {self._name!r} is under way: calling close again waits on",
        )
        try:
            self._close(ends)
        finally:
            self._lock.release()

    def _close(self, ends: float | None) -> None:
        """Lock held."""
        if not self._closed:
            self._closed = True
            try:
                if self._native.alive:
                    self._finish(ends)
                    if not self._static:
                        self._await_free(self._sent, ends)
                    self._device._ask(
                        "Detach",
                        messages.Detach(self._name, self._sent),
                        None,
                        CONTROL_SECONDS if ends is None else max(0.001, ends - monotonic()),
                    )
            except (ConnectionError, NotFoundError):
                pass
            finally:
                regions = [self._credit_region]
                regions += [staging.region for staging in self._staging.values()]
                self._staging.clear()
                with ExitStack() as concealing:  # each, whatever comes of another
                    for region in regions:
                        concealing.callback(conceal, self._native, region, ends)

    def __exit__(self, *_: object) -> None:
        self.close()


def sender(device: Device, name: str, *, timeout: float = CONTROL_SECONDS) -> Sender:
    """The sending end of the channel that the device's process receives from under this name.

    Raises NotFoundError: there is none; AlreadyExistsError: it has a sender; PermissionDeniedError:
    not this process; PeerLostError, DeadlineExceededError, ResourceExhaustedError.
    """
    return Sender(device, name, timeout)
