# SPDX-License-Identifier: Apache-2.0
"""A server's methods: which handler serves a call, with what the data plane needs of it at hand."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import grpc

from tensorwire import _core
from tensorwire.rpc.grpc_internals import NON_BLOCKING, POOL, DictionaryHandler
from tensorwire.rpc.metadata import Metadatum, received
from tensorwire.rpc.options import Limits, bounded
from tensorwire.rpc.payload import takes_segments
from tensorwire.rpc.serving import behaviors

Handler = Any  # grpc.RpcMethodHandler: it is generic for type checkers only

_RUN: Final = {
    (False, False): ("unary_unary", behaviors.unary_unary),
    (False, True): ("unary_stream", behaviors.unary_stream),
    (True, False): ("stream_unary", behaviors.stream_unary),
    (True, True): ("stream_stream", behaviors.stream_stream),
}


class Method:
    """A handler, taken apart. ``run(method, call)`` serves a call by it."""

    __slots__ = (
        "behavior",
        "deserializer",
        "enter",
        "pool",
        "raw",
        "request_streaming",
        "run",
        "serializer",
    )

    def __init__(
        self, handler: Handler, limits: Limits, context: contextvars.Context | None = None
    ) -> None:
        """``context``: where the handler runs; a new one for each call if None."""
        self.request_streaming = bool(handler.request_streaming)
        self.run: behaviors.Run
        arity, self.run = _RUN[self.request_streaming, bool(handler.response_streaming)]
        self.behavior: Callable[..., Any] = getattr(handler, arity)
        if handler.response_streaming and getattr(self.behavior, NON_BLOCKING, None):
            self.run = behaviors.non_blocking
        if limits.metadata is not None:
            self.run = behaviors.within(self.run, limits.metadata)
        self.deserializer: Callable[[Any], Any] | None = handler.request_deserializer
        self.serializer: Callable[[Any], Any] | None = bounded(
            handler.response_serializer, limits.send
        )
        self.raw = takes_segments(self.deserializer)
        self.pool: Any = getattr(self.behavior, POOL, None)
        self.enter: Callable[[], contextvars.Context] = (
            contextvars.Context if context is None else lambda: context
        )


class CallDetails(NamedTuple):
    """What interceptors and generic handlers get to see of a call."""

    method: str
    invocation_metadata: tuple[Metadatum, ...]


class Methods:
    """All methods of a server."""

    def __init__(self, interceptors: Sequence[grpc.ServerInterceptor], limits: Limits) -> None:
        self._interceptors = tuple(interceptors)
        self._limits = limits
        self._registered: dict[str, Handler] = {}
        self._generic: list[grpc.GenericRpcHandler] = []
        self.static: dict[str, Method] = {}
        """Methods whose handler is the same for each call, by name."""

    def add_generic(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._generic.extend(handlers)

    def add_registered(self, service: str, handlers: Mapping[str, Handler]) -> None:
        for name, handler in handlers.items():
            self._registered[f"/{service}/{name}"] = handler

    @property
    def dynamic(self) -> bool:
        """True when a method that is not in ``static`` may exist nevertheless."""
        return bool(self._interceptors) or any(
            type(handler) is not DictionaryHandler for handler in self._generic
        )

    def look_up(self, name: str) -> Method | None:
        """The method whose handler depends on the name only. Kept in ``static`` from then on."""
        if self._interceptors:
            return None
        details: Any = CallDetails(name, ())
        handler = self._registered.get(name)
        for generic in self._generic:
            if handler is not None or type(generic) is not DictionaryHandler:
                break
            handler = generic.service(details)
        if handler is None:
            return None
        method = self.static[name] = Method(handler, self._limits)
        return method

    def choose(self, call: _core.ServerCall) -> Method | None:
        """Asks interceptors and handlers, in the context that the handler will run in. What they
        raise goes to the caller."""
        details = CallDetails(call.method, received(call))
        context = contextvars.Context()
        handler = context.run(self._intercept, 0, details)
        return None if handler is None else Method(handler, self._limits, context)

    def _intercept(self, index: int, details: Any) -> Handler | None:
        if index < len(self._interceptors):
            return self._interceptors[index].intercept_service(
                lambda passed_on: self._intercept(index + 1, passed_on), details
            )
        handler = self._registered.get(details.method)
        for generic in self._generic:
            if handler is not None:
                break
            handler = generic.service(details)
        return handler
