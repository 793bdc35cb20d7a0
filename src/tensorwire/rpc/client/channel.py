# SPDX-License-Identifier: Apache-2.0
"""Channels: ``grpc.Channel`` whose calls take the best transport that reaches the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import grpc

from tensorwire.observe.trace import LinkTrace
from tensorwire.rpc import instrumentation, lifetime, registry, status
from tensorwire.rpc import target as targets
from tensorwire.rpc.choice import Path, Transport, policy
from tensorwire.rpc.client.multicallable import Calling
from tensorwire.rpc.client.peer import Peer
from tensorwire.rpc.client.uplink import Uplink
from tensorwire.rpc.grpc_internals import Layer, is_replaced
from tensorwire.rpc.options import (
    Options,
    limits,
    named,
    tell_what_has_no_effect,
    without_receive_limit,
)

if TYPE_CHECKING:
    from tensorwire.rpc.serving.server import Server

# Policies of gRPC for calls that the data plane does not know.
_GRPC_ONLY: Final = ("grpc.service_config", "grpc.lb_policy_name")


class Channel(Calling):
    """Thread-safe. See ``insecure_channel``."""

    def __init__(self, uplink: Uplink) -> None:
        super().__init__(uplink)
        self._uplink: Uplink = uplink

    # ------------------------------------------------------------------------------ connection

    def subscribe(
        self,
        callback: Callable[[grpc.ChannelConnectivity], None],
        try_to_connect: bool = False,
    ) -> None:
        """Connectivity is that of the gRPC channel, which carries bootstrap and fallback."""
        self._uplink.stock.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        self._uplink.stock.unsubscribe(callback)

    def __repr__(self) -> str:
        stats = self._uplink.stats()
        way = stats["transport"] or "no call yet"
        return f"<tensorwire.Channel to {stats['target']}: {way}>"

    def path(self) -> Path:
        """How calls travel, and why not better. Waits for the choice, at most a second, if no call
        has led to one; at a server that did not answer by then it says that they go by gRPC."""
        return self._uplink.path()

    def peer(self) -> Peer | None:
        """The server's process, at the other end of the link that calls take; None where they go by
        gRPC. Waits for the choice as ``path`` does. The channel may open another link later, to a
        process that has taken the server's place: that is another peer."""
        link = self._uplink.connected()
        return None if link is None else Peer(link.share(), self._uplink.limits)

    def stats(self) -> dict[str, object]:
        """``transport`` and ``peer`` as in ``path``, None before the choice; ``opened``: links so
        far; ``lost``: those that have ended; ``failures``: failed attempts in a row; ``link``: the
        counters of the live link, which another channel may have left, None where calls go by
        gRPC."""
        return self._uplink.stats()

    def trace(self) -> LinkTrace | None:
        """The protocol steps that the live link has noted since ``tensorwire.trace.keep``, or with
        TENSORWIRE_TRACE in the environment; None where calls go by gRPC."""
        return self._uplink.trace()

    def close(self) -> None:
        """Ends calls in progress with CANCELLED. What was received stays readable. A link without
        calls stays open for a second, for the next channel with the same arguments."""
        registry.CHANNELS.get().discard(self)
        self._uplink.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ObservedChannel(Channel, Layer):
    """A channel whose calls pass the interceptors that tools have put around another one."""

    def __init__(self, uplink: Uplink, observed: Any) -> None:
        super().__init__(uplink)
        self._observed: grpc.Channel = observed
        self.resemble(observed)

    def unary_unary(self, *arguments: Any, **named: Any) -> Any:
        return self._observed.unary_unary(*arguments, **named)

    def unary_stream(self, *arguments: Any, **named: Any) -> Any:
        return self._observed.unary_stream(*arguments, **named)

    def stream_unary(self, *arguments: Any, **named: Any) -> Any:
        return self._observed.stream_unary(*arguments, **named)

    def stream_stream(self, *arguments: Any, **named: Any) -> Any:
        return self._observed.stream_stream(*arguments, **named)


def _opened(uplink: Uplink, stock: grpc.Channel | None) -> Channel:
    """``stock``: what grpcio's function has returned, which the uplink uses without what is around
    it; None: that has not been asked for one."""
    channel = Channel(uplink)
    observed = None if stock is None else instrumentation.around(stock, channel)
    if observed is not None:
        channel = _ObservedChannel(uplink, observed)
    registry.CHANNELS.get().add(channel)
    return channel


def insecure_channel(
    target: str,
    options: Options | None = None,
    compression: grpc.Compression | None = None,
    *,
    transport: Transport | None = None,
    forbid: str | Iterable[str] = (),
    serves: Server | None = None,
) -> Channel:
    """``grpc.insecure_channel`` whose calls go by shared memory, RDMA or TCP where the server
    knows tensorwire, too, and by gRPC otherwise.

    Nothing is connected before the first call. That waits at most a second for a better transport,
    then goes by gRPC, and so do later ones while the channel goes on trying. A call in flight when
    its link is lost ends with UNAVAILABLE; it is never sent again. Where links by RDMA keep
    failing, the next best way is taken for a while. Targets that may stand for several servers stay
    on gRPC.

    transport: ``"auto"`` takes the best that works of shm, verbs (RDMA), tcp and grpc; another name
    requires that transport, and
    where it is missing every call ends with UNAVAILABLE and the reason. None: what
    TENSORWIRE_TRANSPORT says, else ``"auto"``.

    forbid: transports that calls may not take; empty: what TENSORWIRE_FORBID says.

    options: as for gRPC. Limits of messages hold on every transport; what has no effect on the data
    plane is named in a warning.
    compression: used where calls go by gRPC.

    serves: a server that has been started. It serves the calls that the process at the other end
    begins itself (``Server.peers``, ``peer_of``), over the same link, and closes that when it is
    stopped. Where calls go by gRPC, the other end can begin none.

    Raises ValueError for unknown transports, when none is left, for an empty target, or for a
    server that does not run; TypeError for a target that is no text.
    """
    given = tuple(options or ())
    settled = next(
        (f"the option {name} is set" for name, _ in named(given) if name in _GRPC_ONLY), None
    )
    uplink = Uplink(
        targets.checked(target),
        without_receive_limit(given),
        compression,
        policy(transport, forbid),
        limits(given),
        settled,
        None if serves is None else serves.data_plane(),
    )
    if uplink.policy.data_plane and settled is None:
        tell_what_has_no_effect(given)
    observed = is_replaced(grpc.insecure_channel)
    return _opened(uplink, uplink.make_stock() if observed else None)


def secure_channel(
    target: str,
    credentials: grpc.ChannelCredentials,
    options: Options | None = None,
    compression: grpc.Compression | None = None,
    *,
    transport: Transport | None = None,
    forbid: str | Iterable[str] = (),
) -> Channel:
    """``grpc.secure_channel``. Its calls stay on gRPC, because the data plane does not encrypt.

    Raises ValueError when another transport is required, or gRPC is forbidden.
    """
    permitted = policy(transport, forbid)
    if not permitted.permits("grpc"):
        raise ValueError(
            f"a secure channel to {target} needs gRPC ({permitted.refusals['grpc']}): "
            "the other transports do not encrypt"
        )
    why_not = lifetime.using_grpc()
    if why_not is not None:
        raise status.CallError(status.FAILED_PRECONDITION, why_not)
    stock = grpc.secure_channel(
        target, credentials, without_receive_limit(tuple(options or ())), compression
    )
    bare = instrumentation.bare(stock)
    return _opened(Uplink.over(bare, target, permitted, "the channel is secure"), stock)
