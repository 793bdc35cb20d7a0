# SPDX-License-Identifier: Apache-2.0
"""Bootstrap/Open: how a client learns over gRPC where the data plane is, and the secret for it.

The request is the client's Hello in the wire codec's own form; the answer is the MessagePack map
``Answer``. The answer's network addresses may lack the host, which stands for the host that the
client dialled: see ``Listeners.addresses``. All transports between hosts set their links up over a
TCP connection, and share a port.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple, NoReturn

import grpc
import msgspec

from tensorwire import _core, environment, transports
from tensorwire.log import LOGGER
from tensorwire.malformed import MALFORMED
from tensorwire.rpc import status, target
from tensorwire.rpc.choice import Policy
from tensorwire.rpc.metadata import USER_AGENT, incoming
from tensorwire.rpc.refusals import Offer, Refusal

METHOD: Final = "/tensorwire.v1.Bootstrap/Open"

_CONNECTIONS: Final = 1  # a secret opens one link: whoever overhears it finds it used
_TTL_SECONDS: Final = 30.0

_Id = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_Secret = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Hello = Annotated[bytes, msgspec.Meta(max_length=4096)]
_Address = Annotated[str, msgspec.Meta(max_length=512)]


class Answer(msgspec.Struct, frozen=True):
    hello: _Hello
    """The server's own."""
    instance: _Id
    """Which server this is; proved again on each connection of the data plane."""
    session: _Id
    secret: _Secret
    ttl: float
    """Seconds within which the connections must be made."""
    connections: int
    """How many connections the secret admits; tries that came to nothing do not count."""
    addresses: Annotated[list[_Address], msgspec.Meta(max_length=32)]
    """Best first: ``shm:<socket path>``, ``verbs:<host>:<port>``, ``tcp:<host>:<port>``."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Answer).decode


_UNANSWERED: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class OpenError(Exception):
    """No answer. ``failure``: what that means for the next attempt (``_core.ATTEMPT_...``).
    ``refusal``: the server gives none for the metadata that Open came with."""

    def __init__(self, reason: str, failure: int, refusal: Refusal | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.failure = failure
        self.refusal = refusal


def ask(
    channel: grpc.Channel, timeout: float, wait_for_ready: bool | None, offer: Offer = ()
) -> Answer:
    """The client's side: one Open over a stock channel. OpenError, also for a malformed answer.

    offer: metadata of the call that the link is for, which tell the server who asks.
    """
    method: Any = channel.unary_unary(METHOD, None, None)
    try:
        data = method(_core.hello(), timeout=timeout, wait_for_ready=wait_for_ready, metadata=offer)
    except grpc.RpcError as error:
        raise _no_answer(error) from None
    try:
        return _decode(data)
    except MALFORMED as error:
        why = f"the server's answer to Open is malformed: {error}"
        raise OpenError(why, _core.ATTEMPT_FINAL) from None


def _no_answer(error: Any) -> OpenError:
    code, details = error.code(), error.details()
    if code is grpc.StatusCode.UNIMPLEMENTED:
        why = f"the server has no data plane ({details or code.name})"
        return OpenError(why, _core.ATTEMPT_FINAL)
    reason = f"the server did not open a data plane: {code.name}: {details}"
    if code in _UNANSWERED:
        return OpenError(reason, _core.ATTEMPT_UNANSWERED)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return OpenError(reason, _core.ATTEMPT_UNREACHED)
    refusal = Refusal(
        code.value[0],
        details or "",
        incoming(error.initial_metadata()),
        incoming(error.trailing_metadata()),
    )
    return OpenError(reason, _core.ATTEMPT_REFUSED, refusal)


class _HostPort(NamedTuple):
    """A TCP port of the data plane."""

    host: str
    port: int


class Listeners:
    """The server's side: where the data plane listens, and what a client is told about it."""

    def __init__(
        self,
        core: _core.Server,
        policy: Policy,
        data_port: int,
        advertise_host: str | None = None,
    ) -> None:
        self._core = core
        self._policy = policy
        self._data_port = data_port
        self._advertised = advertise_host
        self._listening: list[_HostPort] = []
        self._offered: list[str] = []  # best first
        self._local: str | None = None

    def listen(self, address: str) -> None:
        """Beside a gRPC port that was bound to ``address``. RuntimeError: a transport that is
        required, a TCP port that was asked for, or a socket in the folder of
        TENSORWIRE_RUNTIME_DIR, cannot be had."""
        self._offered = self._find_transports()
        local = [name for name in self._offered if transports.is_local(name)]
        networks = [name for name in self._offered if not transports.is_local(name)]
        if local and self._local is None:
            try:
                self._local = self._core.listen_local()
            except _core.StatusError as error:
                wished = self._policy.required is not None or environment.settings()["runtime_dir"]
                self._cannot(local, "a local socket", error, bool(wished))
        if networks:
            # Who bound a unix socket opens no port, unless it asks for one.
            asked = self._data_port != 0 or self._policy.required in networks
            for host in target.parse(address).hosts or (("127.0.0.1",) if asked else ()):
                self._listen_tcp(host, networks)

    def _find_transports(self) -> list[str]:
        """Those that clients may be offered, best first."""
        found = []
        for name in self._policy.data_plane:
            why_not = self._policy.why_not(name)
            if why_not is None:
                found.append(name)
            elif self._policy.required == name:
                raise RuntimeError(f"the data plane cannot offer {name}: {why_not}")
            else:
                LOGGER.debug("clients are not offered %s: %s", name, why_not)
        return found

    def _listen_tcp(self, host: str, networks: list[str]) -> None:
        number = next(iter(target.resolve(host or "::")), host)
        if any(address.host == number for address in self._listening):
            return
        try:
            self._listening.append(
                _HostPort(number, self._core.listen_tcp(number, self._data_port))
            )
        except _core.StatusError as error:
            asked = self._data_port != 0 or self._policy.required is not None
            where = target.address(networks[-1], number, self._data_port)
            self._cannot(networks, where, error, asked)

    def _cannot(self, names: list[str], where: str, error: _core.StatusError, asked: bool) -> None:
        sentence = f"the data plane cannot listen at {where}: {error.details}"
        if asked:
            raise RuntimeError(sentence) from None
        LOGGER.warning("%s; clients are not offered %s there", sentence, " and ".join(names))

    def answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Handler of Open."""
        if context.auth_context().get("transport_security_type", [b"insecure"]) != [b"insecure"]:
            context.abort(
                grpc.StatusCode.UNIMPLEMENTED, "calls on secure ports stay on the secure connection"
            )
        try:
            client = _core.parse_hello(request)
        except _core.StatusError as error:
            _refuse(context, error)
        peer = target.peer_host(context.peer())
        addresses = self.addresses(client, peer)
        if not addresses:
            context.abort(
                grpc.StatusCode.UNIMPLEMENTED, "no transport of the server reaches this client"
            )
        try:
            session, secret = self._core.admit(
                request, _CONNECTIONS, _TTL_SECONDS, target.source(peer)
            )
        except _core.StatusError as error:
            _refuse(context, error)
        # Calls show the peer and the user agent that they would have over gRPC.
        agent = dict(context.invocation_metadata() or ()).get(USER_AGENT, "")
        self._core.introduce(session, context.peer(), str(agent))
        return _encode(
            Answer(
                hello=_core.hello(),
                instance=self._core.instance,
                session=session,
                secret=secret,
                ttl=_TTL_SECONDS,
                connections=_CONNECTIONS,
                addresses=addresses,
            )
        )

    def addresses(self, client: _core.Hello, peer: str) -> list[str]:
        """What a client gets to hear that came from host ``peer`` (empty: by a unix socket).

        A listener on one host is announced by its number. For one on every interface, a client
        that came by loopback gets loopback. Another one is told to take the host that it dialled,
        which is right behind address translation, too, and in second place gets the interface by
        which this machine answers it, which is right where the dialled name is that of a proxy.
        A host that the user wants to be advertised takes the place of all of these for clients of
        other hosts. One that came by loopback hears it last: a sidecar may have brought it here.
        Whoever listens at a wrong address fails the proof, which does it no good.
        """
        near = not peer or target.is_loopback(peer)
        addresses: list[_HostPort] = []
        for host, port in self._listening:
            if self._advertised is not None and not near:
                if not target.is_loopback(host):
                    addresses.append(_HostPort(self._advertised, port))
            elif host not in target.WILDCARDS:
                if near or not target.is_loopback(host):
                    addresses.append(_HostPort(host, port))
            elif near:
                loopback = "::1" if ":" in peer and host == "::" else "127.0.0.1"
                addresses.append(_HostPort(loopback, port))
            else:
                addresses.append(_HostPort("", port))
                interface = target.address_towards(peer)
                if interface is not None:
                    addresses.append(_HostPort(interface, port))
        if self._advertised is not None and near:
            addresses.extend([_HostPort(self._advertised, port) for _, port in self._listening])
        found: list[str] = []
        for name in self._offered:
            if not transports.is_local(name):
                found.extend(target.address(name, *address) for address in dict.fromkeys(addresses))
            elif self._local is not None and client.same_host and client.same_user:
                found.append(f"{name}:{self._local}")
        return found


def _refuse(context: grpc.ServicerContext, error: _core.StatusError) -> NoReturn:
    """UNIMPLEMENTED stands for what no other metadata and no other time will change."""
    code = status.code_of(error.code)
    if code is grpc.StatusCode.FAILED_PRECONDITION:  # no version in common
        code = grpc.StatusCode.UNIMPLEMENTED
    context.abort(code, error.details)
    raise AssertionError("abort raises")
