# SPDX-License-Identifier: Apache-2.0
"""Tools that trace calls (OpenTelemetry, Sentry, ddtrace) replace ``grpc.server``,
``grpc.insecure_channel`` and ``grpc.secure_channel`` by functions that add interceptors. Here those
interceptors are put where they see the user's calls, whichever way these go, and never Open.

grpcio has no public way to ask a server or a channel for its interceptors (``grpc_internals``);
where what is known of its private parts does not hold, a warning says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc

from tensorwire.log import LOGGER
from tensorwire.rpc import bootstrap
from tensorwire.rpc.grpc_internals import (
    Interceptors,
    is_replaced,
    is_stock,
    layers,
    put_inside,
    replace_interceptors,
)
from tensorwire.rpc.grpc_internals import (
    interceptors as interceptors_of,
)

_OBSERVERS: Final = frozenset(("ddtrace", "opentelemetry", "py_grpc_prometheus", "sentry_sdk"))
"""Packages whose interceptors only watch calls, and can refuse none."""


def stock_server(
    pool: Any, first: grpc.ServerInterceptor, interceptors: Sequence[Any], **arguments: Any
) -> tuple[grpc.Server, Interceptors]:
    """``grpc.server`` behind ``first``, and the interceptors behind that, in their order: the
    user's and those that tools have added."""
    server = grpc.server(pool, interceptors=[first, *interceptors], **arguments)
    found = interceptors_of(server)
    if found is None or first not in found:
        if is_replaced(grpc.server):
            LOGGER.warning(_BLIND, "server", "pass it to tensorwire.server as an interceptor")
        return server, tuple(interceptors)
    rest = tuple(interceptor for interceptor in found if interceptor is not first)
    watching = (_NotOpen(each) if _watches(each, interceptors) else each for each in rest)
    replace_interceptors(server, (first, *watching))
    return server, rest


def _watches(interceptor: Any, users: Sequence[Any]) -> bool:
    if type(interceptor).__module__.partition(".")[0] in _OBSERVERS:
        return True
    return all(interceptor is not users_own for users_own in users)


class _NotOpen(grpc.ServerInterceptor):
    """An interceptor that sees every call but Open."""

    def __init__(self, interceptor: grpc.ServerInterceptor) -> None:
        self._interceptor = interceptor

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        if handler_call_details.method == bootstrap.METHOD:
            return continuation(handler_call_details)
        return self._interceptor.intercept_service(continuation, handler_call_details)


def bare(channel: Any) -> grpc.Channel:
    """A channel without the interceptors around it."""
    innermost: grpc.Channel = layers(channel)[-1]
    return innermost


def around(channel: grpc.Channel, inner: grpc.Channel) -> grpc.Channel | None:
    """The interceptors around a channel of grpcio, put around ``inner``; None: there are none.
    ``channel`` is not to be used any more afterwards."""
    found = layers(channel)
    if not is_stock(found[-1]):
        LOGGER.warning(_BLIND, "channel", "pass its interceptors to grpc.intercept_channel")
        return None
    if len(found) == 1:
        return None
    put_inside(found[-2], inner)
    return channel


_BLIND: Final = (
    "a tool that replaces grpc's functions has made a %s of a kind that tensorwire does not know: "
    "it does not see calls on the data plane; %s"
)
