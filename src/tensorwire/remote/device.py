# SPDX-License-Identifier: Apache-2.0
"""A peer's memory as a device: opened, allocated, read and written from here."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from time import monotonic
from typing import Any, Final, SupportsIndex, TypeVar

import grpc
import msgspec
import numpy as np

from tensorwire import _core, transports
from tensorwire.remote import awaited, messages, unreached
from tensorwire.remote.batch import Batch
from tensorwire.remote.errors import (
    FAILED_PRECONDITION,
    INTERNAL,
    DeadlineExceededError,
    NotFoundError,
    PeerLostError,
    RemoteError,
    of_call,
    of_core,
)
from tensorwire.remote.handle import Handle, Rights
from tensorwire.remote.layout import Layout, extents_of
from tensorwire.remote.operation import Operation
from tensorwire.remote.path import Path, Way
from tensorwire.remote.region import Region
from tensorwire.remote.tensor import RemoteTensor
from tensorwire.rpc import Channel, Peer, insecure_channel, kept
from tensorwire.rpc.choice import Transport, policy
from tensorwire.rpc.waiting import Bell, News, ends_at
from tensorwire.tensors import DecodeError, dtypes

M = TypeVar("M", bound=msgspec.Struct)

CONTROL_SECONDS: Final = 20.0
"""For a call to the host, where the caller gives no other time."""


class Device(AbstractContextManager["Device"]):
    """The memory that one peer lets this process at. Thread-safe. See ``connect``.

    It is as good as the link to the peer: after PeerLostError, ``connect`` makes another one, and
    tensors are opened anew. What goes to the peer itself raises that error, and
    DeadlineExceededError after ``timeout`` seconds.
    """

    def __init__(
        self, peer: Peer, reasons: Mapping[str, str], channel: Channel | None, timeout: float | None
    ) -> None:
        """channel: what is closed together with it."""
        self._peer = peer
        self._native: Final = peer.native
        self._channel = channel
        self._reasons = dict(reasons)
        self._lock = threading.Lock()  # guards what follows
        self._opened: set[tuple[int, int]] = set()  # numbers, and which opening of each
        greeting = self._ask("Greet", None, messages.Greeting, timeout)
        assert greeting is not None
        way = self._way(greeting.probe)
        why = self._native.why_not_mapped(greeting.probe)
        if why is not None and transports.is_local(peer.transport):
            self._reasons["mapped"] = why
        self._path = Path(way, peer.transport, peer.address, self._reasons)

    def _way(self, probe: int) -> Way:
        if self._native.mapped(probe):
            return "mapped"
        name = self._peer.transport
        return "device" if transports.lends(name) and not transports.is_local(name) else "frames"

    @property
    def peer(self) -> Peer:
        """The process."""
        return self._peer

    def path(self) -> Path:
        """How memory is reached, and why not better. ``RemoteTensor.path`` says it of one tensor:
        where others are mapped it may go by frames."""
        return self._path

    def stats(self) -> dict[str, object]:
        """``way``, ``transport`` and ``peer`` as in ``path``; ``opened``: tensors that it has
        opened or allocated, and not given back; ``link``: the counters of the link, which calls and
        other devices may use, too: ``operations_mapped``, ``operation_bytes_mapped`` and so on;
        ``remote_regions_unmapped`` are regions, two of a tensor that may be written, that could not
        be mapped, and ``unmapped_reason`` says why the last one."""
        with self._lock:
            opened = len(self._opened)
        path = self._path
        return {
            "way": path.way,
            "transport": path.transport,
            "peer": path.peer,
            "opened": opened,
            "link": self._native.stats(),
        }

    def __repr__(self) -> str:
        return f"<tensorwire.remote.Device {self._path}>"

    # ------------------------------------------------------------------------------- tensors

    def open(self, what: str | Handle, *, timeout: float = CONTROL_SECONDS) -> RemoteTensor:
        """What the peer has exposed, by its name or a handle; of a handle of a part, that part. It
        stays open until ``RemoteTensor.close``, or ``close`` of this device.

        Raises NotFoundError: there is none, or it was concealed, or the handle is another
        process's, a dead one's too; PermissionDeniedError: not for this process; ValueError: the
        handle's part does not lie within the tensor; TypeError: neither name nor handle.
        """
        opened = self._ask_for("Open", _open(what), messages.Opened, timeout, self._give_up)
        return self._tensor(opened, what if isinstance(what, Handle) else opened.handle)

    async def open_async(
        self, what: str | Handle, *, timeout: float = CONTROL_SECONDS
    ) -> RemoteTensor:
        """``open`` in a coroutine. When that is cancelled, nothing stays open."""
        opened = await self._ask_to_open("Open", _open(what), timeout)
        return self._tensor(opened, what if isinstance(what, Handle) else opened.handle)

    def allocate(
        self,
        shape: SupportsIndex | Iterable[SupportsIndex],
        dtype: object = np.float32,
        *,
        name: str | None = None,
        shared: Rights = Rights.NONE,
        timeout: float = CONTROL_SECONDS,
    ) -> RemoteTensor:
        """A new tensor over there, zeroed, with all rights. It is this process's until it is
        closed, or the link ends: then it is gone, as what it holds.

        name, shared: other peers of the host open it by its name, or its handle, with these rights.

        Raises ResourceExhaustedError that names the budget; PermissionDeniedError: the host does
        not lend memory; AlreadyExistsError: the name is taken; TypeError, ValueError.
        """
        asked = _allocate(shape, dtype, name, shared)
        opened = self._ask_for("Allocate", asked, messages.Opened, timeout, self._give_up)
        return self._tensor(opened, opened.handle)

    async def allocate_async(
        self,
        shape: SupportsIndex | Iterable[SupportsIndex],
        dtype: object = np.float32,
        *,
        name: str | None = None,
        shared: Rights = Rights.NONE,
        timeout: float = CONTROL_SECONDS,
    ) -> RemoteTensor:
        """``allocate`` in a coroutine. When that is cancelled, nothing stays allocated."""
        asked = _allocate(shape, dtype, name, shared)
        opened = await self._ask_to_open("Allocate", asked, timeout)
        return self._tensor(opened, opened.handle)

    def _tensor(self, opened: messages.Opened, part: Handle) -> RemoteTensor:
        """Of what the peer says, nothing is believed that would lead outside of the region."""
        number = opened.handle.number
        with self._lock:
            self._opened.add((number, opened.opening))
        region = Region(
            self._native,
            opened.handle,
            opened.region,
            opened.signal,
            Rights(opened.rights),
            self._path,
            lambda: self._close(number, opened.opening, monotonic() + CONTROL_SECONDS),
        )
        try:
            return RemoteTensor(region, *self._layout(opened, part))
        except (DecodeError, TypeError, ValueError, RemoteError):
            region.close()
            raise

    def _layout(self, opened: messages.Opened, part: Handle) -> tuple[Layout, np.dtype[Any]]:
        dtype = dtypes.resolve(opened.handle.dtype)
        size = 0
        if opened.region:
            known = self._native.region(opened.region)
            if known is None:
                raise NotFoundError("it was concealed while it was being opened")
            size = known[0]
        whole = Layout.whole(opened.handle.shape, dtype.itemsize)
        if whole.reach > size:
            raise RemoteError(
                f"the peer at {self._peer.address} has opened {size} bytes as a tensor of "
                f"{whole.nbytes}",
                INTERNAL,
            )
        if part is opened.handle:
            return whole, dtype
        layout = Layout(part.offset, part.shape, part.strides, dtype.itemsize)
        if (
            part.dtype != opened.handle.dtype
            or len(part.shape) != len(part.strides)
            or layout.reach > whole.nbytes
        ):
            raise ValueError("the handle is of a part that does not lie within the tensor")
        return layout, dtype

    def _close(self, number: int, opening: int, ends: float) -> None:
        """What was opened, or allocated. ends: of ``time.monotonic``. Where it raises, that stays
        open."""
        with self._lock:
            if (number, opening) not in self._opened:
                return  # by close()
            self._opened.remove((number, opening))
        try:
            self._give_back(messages.Close(number, opening), ends)
        except BaseException:
            with self._lock:
                self._opened.add((number, opening))
            raise

    def _give_back(self, close: messages.Close, ends: float) -> None:
        while self._native.alive:  # with the link, the peer has forgotten it
            left = min(max(0.001, ends - monotonic()), CONTROL_SECONDS)
            try:
                with suppress(PeerLostError):
                    self._ask("Close", close, None, left)
                return
            except DeadlineExceededError:
                if not math.isinf(ends):
                    raise

    # ----------------------------------------------------------------------------- operations

    def batch(self) -> Batch:
        """Collects transfers that are then started together."""
        return Batch(self._native)

    def fence(self) -> None:
        """What is started later happens after all that was started before, reads and updates too:
        without it, a write may overtake these. PeerLostError."""
        if not self._native.alive:
            address, why = self._peer.address, self._native.death
            raise PeerLostError(f"the peer at {address} is gone: {why}")
        self._native.fence()

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all that this process has started was done at the peer. timeout: seconds;
        None: without a limit. DeadlineExceededError, and it goes on; PeerLostError."""
        try:
            done = self._native.flush(timeout)
        except _core.StatusError as raised:
            raise of_core(raised, self._native) from None
        if not done:
            raise DeadlineExceededError(
                f"not all was done at the peer at {self._peer.address} within {timeout:g} s"
            )

    async def flush_async(self, timeout: float | None = None) -> None:
        """``flush`` in a coroutine. A thread waits, unless all was done already."""
        try:
            flushing = Operation(self._native, self._native.start_flush())
        except _core.StatusError as raised:
            raise of_core(raised, self._native) from None
        await flushing.wait_async(timeout)

    # ----------------------------------------------------------------------------- its end

    def close(self, timeout: float | None = CONTROL_SECONDS) -> None:
        """Gives back all that was opened and allocated by it, or closes the link if ``connect``
        has made it. timeout: seconds, for all of it; None: without a limit, which the end of the
        link is anyway.

        Raises DeadlineExceededError: what was not given back is by calling it again, and goes with
        the link at the latest.
        """
        if self._channel is not None:
            self._peer.close()
            self._channel.close()
            return
        with self._lock:
            opened = list(self._opened)
        ends = math.inf if timeout is None else ends_at(timeout)
        with ExitStack() as closing:  # each, whatever comes of another
            for number, opening in opened:
                closing.callback(self._close, number, opening, ends)

    async def close_async(self, timeout: float | None = CONTROL_SECONDS) -> None:
        """``close`` in a coroutine. When that is cancelled, a thread goes on."""
        await asyncio.to_thread(self.close, timeout)

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------ its questions

    def _ask(
        self,
        name: str,
        request: msgspec.Struct | None,
        reply: type[M] | None,
        timeout: float | None,
    ) -> Any:
        encoded = b"" if request is None else messages.encode(request)
        return self._answer(partial(self._method(name), encoded, timeout=timeout), reply)

    def _ask_for(
        self,
        name: str,
        request: msgspec.Struct,
        reply: type[M],
        timeout: float,
        give_up: Callable[[Any], None],
    ) -> M:
        """As ``_ask``, for what is held over there from then on. give_up: of the call, where nobody
        has waited for its end: by then it may have made something."""
        call: Any = None
        bell = Bell()
        try:
            call = self._begin(name, request, timeout)
            call.add_done_callback(lambda _: bell.ring())
            if not bell.wait(timeout):
                raise self._late(timeout)
            answer: M = self._answer(call.result, reply)
        except BaseException:
            if call is not None:
                call.add_done_callback(give_up)
            raise
        return answer

    async def _ask_to_open(
        self, name: str, request: msgspec.Struct, timeout: float
    ) -> messages.Opened:
        call = self._begin(name, request, timeout)
        news = News()
        call.add_done_callback(lambda _: news.wake())
        try:
            if not await news.wait(timeout):
                raise self._late(timeout)
            opened: messages.Opened = self._answer(call.result, messages.Opened)
        except BaseException:
            call.add_done_callback(self._give_up)
            raise
        return opened

    def _begin(self, name: str, request: msgspec.Struct, timeout: float | None) -> Any:
        """A call that lasts longer than who waits for it, so that what comes late can be given
        back."""
        seconds = None if timeout is None else max(0.0, timeout) + CONTROL_SECONDS
        return self._method(name).future(messages.encode(request), timeout=seconds)

    def _late(self, timeout: float) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"the peer at {self._peer.address} has not answered within {timeout:g} s"
        )

    def _give_up(self, call: Any) -> None:
        """What nobody waits for any more. By a thread that others wait for."""
        with suppress(RemoteError):
            opened = self._answer(call.result, messages.Opened)
            self._tell("Close", messages.Close(opened.handle.number, opened.opening))

    def _tell(self, name: str, request: msgspec.Struct) -> None:
        """As ``_ask``, and nobody waits for the answer."""
        call = self._begin(name, request, 0.0)
        call.add_done_callback(lambda _: None)  # one that nobody knows of is cancelled

    def _method(self, name: str) -> Any:
        return self._peer.unary_unary(f"/{messages.SERVICE}/{name}")

    def _answer(self, call: Callable[[], bytes], reply: type[M] | None) -> Any:
        try:
            data = call()
        except grpc.RpcError as raised:
            raise of_call(raised, self._peer.address) from None
        if reply is None:
            return None
        try:
            return messages.decode(data, reply)
        except DecodeError as raised:
            raise RemoteError(
                f"the peer at {self._peer.address} answers with {raised}", INTERNAL
            ) from None


def _open(what: str | Handle) -> messages.Open:
    """TypeError, ValueError."""
    if isinstance(what, Handle):
        return messages.Open(handle=what)
    if not isinstance(what, str):
        raise TypeError(f"a name or a Handle opens a tensor, not a {type(what).__name__}")
    if not what:
        raise ValueError("the name is empty")
    return messages.Open(name=what)


def _allocate(
    shape: SupportsIndex | Iterable[SupportsIndex],
    dtype: object,
    name: str | None,
    shared: Rights,
) -> messages.Allocate:
    """TypeError, ValueError."""
    extents = extents_of(shape)
    if any(extent < 0 for extent in extents):
        raise ValueError(f"negative extent in shape {extents}")
    return messages.Allocate(extents, dtypes.name_of(dtypes.parse(dtype)), name, shared.value)


def connect(
    target: str | Channel | Peer,
    *,
    transport: Transport | None = None,
    forbid: str | Iterable[str] = (),
    timeout: float | None = CONTROL_SECONDS,
) -> Device:
    """The memory that the process at ``target`` lets this one at, by its ``remote.host``.

    target: of its server, as for ``insecure_channel``; or a channel to it, whose link is then used;
    or a peer, such as a client of a server of this process that serves a host of its own.
    transport, forbid: as of ``insecure_channel``, for a target. timeout: seconds for the link and
    the first answer; None: without a limit.

    Raises DeadlineExceededError: nobody is there, as the text says then, or the answer is late;
    PeerLostError; RemoteError: no link leads there, for the reason that it gives, or the process
    has no host; ValueError.
    """
    kept.free_in_background()
    if isinstance(target, Peer):
        return Device(target, {}, None, timeout)
    if isinstance(target, Channel):
        return _over(target, None, timeout)
    permitted = policy(transport, forbid)
    if not permitted.data_plane:
        raise ValueError(f"memory is accessed by links, and none is permitted ({permitted.origin})")
    channel = insecure_channel(
        target, transport=transport, forbid=sorted({*permitted.forbidden, "grpc"})
    )
    try:
        return _over(channel, channel, timeout)
    except BaseException:
        channel.close()
        raise


async def connect_async(
    target: str | Channel | Peer,
    *,
    transport: Transport | None = None,
    forbid: str | Iterable[str] = (),
    timeout: float | None = CONTROL_SECONDS,
) -> Device:
    """``connect`` in a coroutine. When that is cancelled, nothing stays open that it has opened."""
    return await awaited.made(
        lambda: connect(target, transport=transport, forbid=forbid, timeout=timeout), Device.close
    )


def _over(channel: Channel, own: Channel | None, timeout: float | None) -> Device:
    ends = ends_at(timeout)
    # A call waits for a link as long as it may; channel.peer() as long as an attempt takes.
    method: Any = channel.unary_unary(f"/{messages.SERVICE}/Greet")
    try:
        method(b"", timeout=timeout, wait_for_ready=True)
    except grpc.RpcError as raised:
        said = channel.stats()
        of = unreached.of_first_call if said["link"] is None else of_call
        raise of(raised, str(said["target"])) from None
    peer = channel.peer()
    if peer is None:
        raise RemoteError(
            f"memory is accessed by links, and calls go by {channel.path()}", FAILED_PRECONDITION
        )
    left = None if ends is None else max(0.001, ends - monotonic())
    return Device(peer, channel.path().reasons, own, left)
