# SPDX-License-Identifier: Apache-2.0
"""Peers: the process at the other end of a link, whichever of the two has made it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import grpc

from tensorwire import _core
from tensorwire.observe.trace import LinkTrace, link_trace
from tensorwire.rpc import events, kept, status
from tensorwire.rpc.choice import Path
from tensorwire.rpc.client.duplex import Duplex
from tensorwire.rpc.client.multicallable import Calling
from tensorwire.rpc.options import Limits
from tensorwire.rpc.waiting import wait

if TYPE_CHECKING:
    from typing_extensions import Buffer as BytesLike

    from tensorwire._core import Message, Received


class _OneLink:
    """Calls take this link, or fail."""

    def __init__(self, link: _core.Peer, limits: Limits) -> None:
        self.link: Final = link
        self.limits = limits

    @property
    def stock(self) -> grpc.Channel:
        raise status.CallError(
            status.UNIMPLEMENTED,
            "calls to a peer go over its link only, which takes no call credentials",
        )

    def route(
        self,
        timeout: float | None,
        wait_for_ready: bool | None,
        metadata: Iterable[tuple[str | bytes, str | bytes]] | None = None,
    ) -> tuple[_core.Peer | None, float | None]:
        if self.link.alive:
            return self.link, timeout
        raise status.CallError(
            status.UNAVAILABLE, f"the peer at {self.link.address} is gone: {self.link.death}"
        )


class Posted:
    """A message that was asked for by its tag (``Peer.post``). It is asked for even when this
    object goes; the memory for it belongs to it until it has ended."""

    def __init__(
        self,
        peer: _core.Peer,
        tag: int,
        into: BytesLike | None,
        callback: Callable[[], object] | None,
    ) -> None:
        """``Peer.post`` makes them. Raises StatusError."""
        self._peer = peer.share()
        self._tag = tag
        self._into = into
        self._native: _core.Receive
        if callback is None:
            self._native = peer.receive(tag, into)
        else:
            events.watch(self, callback)

    def notify(self, queue: _core.EventQueue, token: int) -> None:
        """For ``events.watch``: asks, and has its end told."""
        self._native = self._peer.receive(self._tag, self._into, queue, token)

    @property
    def done(self) -> bool:
        """Whether it has ended: ``wait`` returns at once."""
        return self._native.ended

    def wait(self, timeout: float | None = None) -> Received | int | None:
        """The segments of the message, or the number of its bytes where there was memory for them;
        None after ``timeout`` seconds: it stays asked for.

        Raises CallError: UNAVAILABLE once the peer is gone; OUT_OF_RANGE when the message was
        larger than the memory, and it is dropped; CANCELLED; FAILED_PRECONDITION when it was taken
        before.
        """
        try:
            return self._native.wait(timeout)
        except _core.StatusError as error:
            raise status.CallError(error.code, error.details) from None

    def cancel(self) -> bool:
        """Takes back what was asked for: nobody writes to its memory any more, and the message goes
        to who asks next. False: it has ended."""
        return self._native.cancel()

    def __repr__(self) -> str:
        state = "has ended" if self.done else "waits"
        return f"<tensorwire.Posted tag {self._tag} of {self._peer.address}, {state}>"


class Peer(Calling):
    """A process that is reached over one link, and that reaches this one over it, too.

    It is a ``grpc.Channel``: ``Stub(peer)`` makes calls that the other process serves, whichever of
    the two has connected. A process that has connected serves calls if its channel was made with
    ``serves``; else they end with UNIMPLEMENTED.

    A peer is gone when its link is. One that connects anew is another peer. A Peer keeps no link
    open: the channel that has made it does. Two objects for the same link are equal. Thread-safe.
    """

    def __init__(self, native: _core.Peer, limits: Limits) -> None:
        """``Channel.peer``, ``Server.peers`` and ``peer_of`` make them."""
        super().__init__(_OneLink(native, limits))
        self._native = native

    @property
    def native(self) -> _core.Peer:
        """The link's end, for what this package builds on it."""
        return self._native

    @property
    def transport(self) -> str:
        """``shm``, ``verbs`` or ``tcp``."""
        return self._native.transport

    @property
    def address(self) -> str:
        """As gRPC writes it: ``ipv4:127.0.0.1:4242``, ``unix:``."""
        return self._native.caller or self._native.address

    @property
    def agent(self) -> str:
        """Of a process that has connected to this one, the user agent of its channel; else
        empty."""
        return self._native.agent

    @property
    def pid(self) -> int | None:
        """None unless it runs on this host, in a pid namespace that this process knows."""
        return self._native.pid or None

    @property
    def alive(self) -> bool:
        """False once it is gone, or has said that it goes away."""
        return self._native.alive

    @property
    def death(self) -> str:
        """Why it is not alive; empty while it is."""
        return self._native.death

    def path(self) -> Path:
        """How messages travel. It does not say why by no better transport, which only the channel
        knows."""
        return Path(self.transport, self.address).with_statistics(self._native.stats())

    def stats(self) -> dict[str, object]:
        """The counters of the link."""
        return self._native.stats()

    def trace(self) -> LinkTrace:
        """The protocol steps that the link has noted, as in ``Channel.trace``."""
        return link_trace(self.transport, self._native.address, *self._native.trace())

    # ---------------------------------------------------------------------------------- its end

    def on_gone(self, callback: Callable[[Peer], object]) -> None:
        """Has ``callback(peer)`` called once it is gone, soon if it is, by a thread of tensorwire's
        that others wait for, too. Its exceptions are logged."""
        events.watch(self._native, lambda: callback(self))

    def wait_gone(self, timeout: float | None = None) -> bool:
        """Waits until it is gone. timeout: seconds. False: it is not."""
        return wait(events.gone(self._native), timeout)

    def close(self) -> None:
        """Ends the link, with all calls on it (CANCELLED) and all accesses. What was received stays
        readable. A channel that had made it opens another one with its next call."""
        self._native.close()

    def duplex(self, method: str) -> Duplex:
        """Begins a streaming call that its caller drives message by message. Raises CallError."""
        return Duplex(self._native, method)

    # -------------------------------------------------------------------------- tagged messages

    def send(self, tag: int, message: Message, timeout: float | None = None) -> None:
        """Sends a message, which the other process receives by its tag.

        tag: 0 to 2^63 - 1. message: bytes-like, or a list of them, each of which becomes a segment;
        memory of the arena travels without a copy. Messages of one tag arrive in order. Returns
        once the memory may be written again, at the latest after ``timeout`` seconds.

        Raises CallError: INVALID_ARGUMENT; DEADLINE_EXCEEDED or RESOURCE_EXHAUSTED, and the peer
        will not see it; UNAVAILABLE once the peer is gone, which may have seen it.
        """
        kept.free_in_background()
        try:
            self._native.send(tag, message, timeout)
        except _core.StatusError as error:
            raise status.CallError(error.code, error.details) from None

    def receive(self, tag: int, timeout: float | None = None) -> list[_core.Buffer]:
        """The next message of a tag: its segments, as read-only memory.

        Raises CallError: DEADLINE_EXCEEDED after ``timeout`` seconds, and the message goes to who
        asks next; UNAVAILABLE once the peer is gone; RESOURCE_EXHAUSTED.
        """
        segments = self._received(tag, None, timeout)
        assert isinstance(segments, list)
        return segments

    def receive_into(self, tag: int, into: BytesLike, timeout: float | None = None) -> int:
        """Receives the next message of a tag into ``into`` (bytes-like, C-contiguous, writable),
        its segments one after the other. The number of bytes.

        Raises CallError as ``receive`` does, and OUT_OF_RANGE when the message was larger: then it
        is dropped. With any of them ``into`` may have been written to, and is no more: what had
        come of a message is copied for who asks next.
        """
        count = self._received(tag, into, timeout)
        assert isinstance(count, int)
        return count

    def post(
        self,
        tag: int,
        into: BytesLike | None = None,
        callback: Callable[[], object] | None = None,
    ) -> Posted:
        """Asks for the next message of a tag before it has come, as ``receive`` or ``receive_into``
        do: over TCP and RDMA it then comes straight into ``into``, and its sender never waits for
        this process. Those of one tag get the messages in their order. callback: called once it has
        ended, by a thread of tensorwire's that others wait for, too.

        Raises CallError: INVALID_ARGUMENT, UNIMPLEMENTED (the peer's version).
        """
        kept.free_in_background()
        try:
            return Posted(self._native, tag, into, callback)
        except _core.StatusError as error:
            raise status.CallError(error.code, error.details) from None

    def _received(self, tag: int, into: BytesLike | None, timeout: float | None) -> Received | int:
        posted = self.post(tag, into)
        try:
            found = posted.wait(timeout)
        except BaseException:
            posted.cancel()
            raise
        if found is None and not posted.cancel():
            found = posted.wait()  # it has come in the meantime
        if found is None:
            raise status.CallError(
                status.DEADLINE_EXCEEDED,
                f"no message with tag {tag} came from {self.address} within {timeout:g} s",
            )
        return found

    # ----------------------------------------------------------------------------- as an object

    def subscribe(
        self,
        callback: Callable[[grpc.ChannelConnectivity], None],
        try_to_connect: bool = False,
    ) -> None:
        """READY as long as it is alive, then SHUTDOWN."""
        if self.alive:
            callback(grpc.ChannelConnectivity.READY)
        self.on_gone(lambda _: callback(grpc.ChannelConnectivity.SHUTDOWN))

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """Has no effect: what was subscribed is called once more at most."""

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and self._native == other._native

    def __hash__(self) -> int:
        return hash(self._native)

    def __repr__(self) -> str:
        state = "alive" if self.alive else f"gone: {self.death}"
        return f"<tensorwire.Peer {self.address} by {self.transport}, {state}>"


def peer_of(context: grpc.ServicerContext) -> Peer | None:
    """The process that has begun the call that ``context`` belongs to; None where the call came by
    gRPC."""
    process = getattr(context, "peer_process", None)
    return None if process is None else process()
