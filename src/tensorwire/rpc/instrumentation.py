# SPDX-License-Identifier: Apache-2.0
"""Tools that trace calls (OpenTelemetry, Sentry, ddtrace) replace ``grpc.server``,
``grpc.insecure_channel`` and ``grpc.secure_channel`` by functions that add interceptors. Here those
interceptors are put where they see the user's calls, whichever way these go, and never Open.

grpcio has no public way to ask a server or a channel for its interceptors. What is read of its
private parts, and of the tools', is read here only; where it is missing, a warning says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Final

import grpc
from grpc import _channel as stock_channels

from tensorwire.log import LOGGER
from tensorwire.rpc import bootstrap

_OBSERVERS: Final = frozenset(("ddtrace", "opentelemetry", "py_grpc_prometheus", "sentry_sdk"))
"""Packages whose interceptors only watch calls, and can refuse none."""

Interceptors = tuple[grpc.ServerInterceptor, ...]


def stock_server(
    pool: Any, first: grpc.ServerInterceptor, interceptors: Sequence[Any], **arguments: Any
) -> tuple[grpc.Server, Interceptors]:
    """``grpc.server`` behind ``first``, and the interceptors behind that, in their order: the
    user's and those that tools have added."""
    server = grpc.server(pool, interceptors=[first, *interceptors], **arguments)
    pipeline: Any = getattr(getattr(server, "_state", None), "interceptor_pipeline", None)
    found = getattr(pipeline, "interceptors", None)
    if not isinstance(found, tuple) or first not in found:
        if replaced(grpc.server):
            LOGGER.warning(_BLIND, "server", "pass it to tensorwire.server as an interceptor")
        return server, tuple(interceptors)
    rest = tuple(interceptor for interceptor in found if interceptor is not first)
    watching = (_NotOpen(each) if _watches(each, interceptors) else each for each in rest)
    pipeline.interceptors = (first, *watching)
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
    innermost: grpc.Channel = _layers(channel)[-1]
    return innermost


def around(channel: grpc.Channel, inner: grpc.Channel) -> grpc.Channel | None:
    """The interceptors around a channel of grpcio, put around ``inner``; None: there are none.
    ``channel`` is not to be used any more afterwards."""
    layers = _layers(channel)
    if not isinstance(layers[-1], stock_channels.Channel):
        LOGGER.warning(_BLIND, "channel", "pass its interceptors to grpc.intercept_channel")
        return None
    if len(layers) == 1:
        return None
    layers[-2]._channel = inner
    return channel


def _layers(channel: Any) -> list[Any]:
    """From the outermost to the one that makes calls."""
    layers = [channel]
    while isinstance(inner := getattr(layers[-1], "_channel", None), grpc.Channel):
        layers.append(inner)
    return layers


def replaced(function: Callable[..., Any]) -> bool:
    """Whether a function of grpcio has been replaced by a tool."""
    return type(function) is not FunctionType or function.__code__.co_filename != grpc.__file__


_BLIND: Final = (
    "a tool that replaces grpc's functions has made a %s of a kind that tensorwire does not know: "
    "it does not see calls on the data plane; %s"
)
