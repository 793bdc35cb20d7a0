"""The gRPC plane of a server: everything that the wrapped stock server asks us about a call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from typing import Any, NoReturn

import grpc

from tensorwire.rpc import bootstrap
from tensorwire.rpc.limit import Limit
from tensorwire.rpc.methods import Handler
from tensorwire.rpc.payload import joining, splitting

_MAKE = {
    (False, False): (grpc.unary_unary_rpc_method_handler, "unary_unary"),
    (False, True): (grpc.unary_stream_rpc_method_handler, "unary_stream"),
    (True, False): (grpc.stream_unary_rpc_method_handler, "stream_unary"),
    (True, True): (grpc.stream_stream_rpc_method_handler, "stream_stream"),
}


class Gateway(grpc.ServerInterceptor):
    """Stands before the user's interceptors.

    It answers Open itself: a client that is let in shows no more than that it reached the port, and
    each of its calls passes the user's interceptors then. It also makes handlers whose messages
    have several segments fit for gRPC, and keeps the limit that both planes share.
    """

    def __init__(self, limit: Limit | None) -> None:
        self._limit = limit
        # Open has to be answered, and calls refused, while all of the user's threads are busy.
        self._pool = futures.ThreadPoolExecutor(1, thread_name_prefix="tensorwire-gateway")
        self._open: Handler = None
        self._refusal: Handler = grpc.stream_stream_rpc_method_handler(self._own(_refuse))

    def serve_open(self, answer: Callable[[bytes, grpc.ServicerContext], bytes]) -> None:
        self._open = grpc.unary_unary_rpc_method_handler(self._own(answer))

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    def _own(self, behavior: Callable[..., Any]) -> Callable[..., Any]:
        """The same behavior, run in our own thread: grpcio looks for this attribute."""

        def run(request: Any, context: grpc.ServicerContext) -> Any:
            return behavior(request, context)

        run.experimental_thread_pool = self._pool  # type: ignore[attr-defined]
        return run

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        if self._open is not None and handler_call_details.method == bootstrap.METHOD:
            return self._open
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        if self._limit is not None and self._limit.reached:
            return self._refusal
        return _for_bytes(handler)


def _for_bytes(handler: Handler) -> Handler:
    make, arity = _MAKE[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(
        getattr(handler, arity),
        splitting(handler.request_deserializer),
        joining(handler.response_serializer),
    )


def _refuse(_: object, context: grpc.ServicerContext) -> NoReturn:
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
    raise AssertionError("abort raises")
