# SPDX-License-Identifier: Apache-2.0
"""The methods by which peers ask a host, on the link that they then access its memory by."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

import grpc

from tensorwire import _core
from tensorwire.remote import messages
from tensorwire.remote.errors import FAILED_PRECONDITION, RemoteError
from tensorwire.remote.host import Host
from tensorwire.rpc import Server, kept, peer_of
from tensorwire.rpc.status import code_of
from tensorwire.tensors import DecodeError

Behavior = Callable[[Host, _core.Peer, bytes], bytes]


def _greet(host: Host, native: _core.Peer, request: bytes) -> bytes:
    return messages.encode(host.greet(native))


def _open(host: Host, native: _core.Peer, request: bytes) -> bytes:
    return messages.encode(host.open(native, messages.decode(request, messages.Open)))


def _allocate(host: Host, native: _core.Peer, request: bytes) -> bytes:
    return messages.encode(host.allocate(native, messages.decode(request, messages.Allocate)))


def _close(host: Host, native: _core.Peer, request: bytes) -> bytes:
    asked = messages.decode(request, messages.Close)
    host.give_back(native, asked.number, asked.opening)
    return b""


def _attach(host: Host, native: _core.Peer, request: bytes) -> bytes:
    return messages.encode(host.attach(native, messages.decode(request, messages.Attach)))


def _detach(host: Host, native: _core.Peer, request: bytes) -> bytes:
    host.detach(native, messages.decode(request, messages.Detach))
    return b""


_METHODS: Final[dict[str, Behavior]] = {
    "Greet": _greet,
    "Open": _open,
    "Allocate": _allocate,
    "Close": _close,
    "Attach": _attach,
    "Detach": _detach,
}


class _Service:
    """Of one server, which keeps its methods when a host is closed and another one made."""

    def __init__(self) -> None:
        self.host: Host | None = None

    def handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            messages.SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(self._answering(behavior))
                for name, behavior in _METHODS.items()
            },
        )

    def _answering(self, behavior: Behavior) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def answer(request: bytes, context: Any) -> bytes:
            peer, host = peer_of(context), self.host
            try:
                if peer is None:
                    raise RemoteError(
                        "the call came by gRPC: memory is accessed by a link, which this channel "
                        "has none of (channel.path() says why)",
                        FAILED_PRECONDITION,
                    )
                if host is None:
                    raise RemoteError("this server has no remote.host", FAILED_PRECONDITION)
                return behavior(host, peer.native, request)
            except RemoteError as error:
                context.abort(code_of(error.code), str(error))
            except (DecodeError, TypeError, ValueError) as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError("abort raises")

        return answer


_lock: Final = threading.Lock()
_services: Final[weakref.WeakKeyDictionary[Server, _Service]] = weakref.WeakKeyDictionary()


def host(
    server: Server,
    *,
    budget: int = 1 << 30,
    budget_per_peer: int | None = None,
    may_allocate: bool = False,
) -> Host:
    """Lets the peers of ``server`` at what is exposed by the ``Host`` that this returns: processes
    that have opened a link to it, and those that it serves on a channel of this process
    (``insecure_channel(serves=server)``). They ask for it by calls, which pass the server's
    interceptors and its thread pool like any other.

    may_allocate: peers may take memory of this process, ``budget`` bytes in all and
    ``budget_per_peer`` each (None: all of the budget), which they hold until they give it back or
    their link ends.

    Raises ValueError: the server has a host that was not closed; ResourceExhaustedError.
    """
    made = Host(budget, budget if budget_per_peer is None else budget_per_peer, may_allocate)
    kept.free_in_background()
    with _lock:
        service = _services.get(server)
        if service is None:
            service = _services[server] = _Service()
            server.add_generic_rpc_handlers((service.handler(),))
        elif service.host is not None and not service.host.closed:
            raise ValueError("the server has a host: close that first")
        service.host = made
    return made
