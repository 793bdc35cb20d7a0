# SPDX-License-Identifier: Apache-2.0
"""The gRPC plane of a server: everything that the wrapped stock server asks us about a call."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent import futures
from typing import Any, NoReturn

import grpc

from tensorwire.rpc import bootstrap
from tensorwire.rpc.grpc_internals import POOL, RequestFirst
from tensorwire.rpc.payload import joining, splitting
from tensorwire.rpc.serving.limit import Limit
from tensorwire.rpc.serving.methods import Handler

_MAKE = {
    (False, False): (grpc.unary_unary_rpc_method_handler, "unary_unary"),
    (False, True): (grpc.unary_stream_rpc_method_handler, "unary_stream"),
    (True, False): (grpc.stream_unary_rpc_method_handler, "stream_unary"),
    (True, True): (grpc.stream_stream_rpc_method_handler, "stream_stream"),
}


class Gateway(grpc.ServerInterceptor):
    """Stands before the user's interceptors.

    It serves Open, which passes the user's interceptors like any other method, so that these can
    refuse it. It also makes handlers whose messages have several segments fit for gRPC, and keeps
    the limit that both planes share.
    """

    def __init__(self, limit: Limit | None) -> None:
        self._limit = limit
        # Open has to be answered, and calls refused, while all of the user's threads are busy.
        # What authenticates Open may take its time, and holds no refusal up. Where nothing stands
        # between a client and our answer, which is quick, no thread is woken for it.
        self._openers = RequestFirst(4, "tensorwire-open")
        self._at_once = RequestFirst(1, "tensorwire-open", here=True)
        self._refusers = futures.ThreadPoolExecutor(1, thread_name_prefix="tensorwire-refuse")
        self._open: Handler = None
        self._open_at_once: Handler = None
        self._refusal: Handler = grpc.stream_stream_rpc_method_handler(
            _run_in(self._refusers, _refuse)
        )

    def serve_open(self, answer: Callable[[bytes, grpc.ServicerContext], bytes]) -> None:
        self._open = grpc.unary_unary_rpc_method_handler(_keeping(answer))
        self._open_at_once = grpc.unary_unary_rpc_method_handler(_run_in(self._at_once, answer))

    def handler(self) -> grpc.GenericRpcHandler:
        """Of Open. It comes before the user's handlers, which may serve every method."""
        return _Bootstrap(lambda: self._open)

    def close(self) -> None:
        self._openers.shutdown(wait=False)
        self._at_once.shutdown(wait=False)
        self._refusers.shutdown(wait=False)

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        if handler is self._open:  # no interceptor has put anything around it
            return self._open_at_once
        if handler_call_details.method == bootstrap.METHOD:
            make, arity = _kind(handler)
            behavior = _run_in(self._openers, _with_kept(getattr(handler, arity)))
            return make(behavior, handler.request_deserializer, handler.response_serializer)
        if self._limit is not None and self._limit.reached:
            return self._refusal
        return _for_bytes(handler)


class _Bootstrap(grpc.GenericRpcHandler):
    def __init__(self, handler: Callable[[], Handler]) -> None:
        self._handler = handler

    def service(self, handler_call_details: Any) -> Handler:
        return self._handler() if handler_call_details.method == bootstrap.METHOD else None


_answers: contextvars.ContextVar[list[bytes]] = contextvars.ContextVar("answers")
"""To the Open that is being served here."""


def _keeping(answer: Callable[..., bytes]) -> Callable[..., bytes]:
    def run(request: bytes, context: grpc.ServicerContext) -> bytes:
        answered = answer(request, context)
        _answers.get([]).append(answered)
        return answered

    return run


def _with_kept(behavior: Callable[..., Any]) -> Callable[..., Any]:
    """Interceptors that wrap all handlers may refuse Open, before it is answered or after that.
    What they make of its answer's bytes is not sent, nor is an answer beside an error."""

    def run(request: Any, context: grpc.ServicerContext) -> Any:
        answers: list[bytes] = []
        _answers.set(answers)
        response = behavior(request, context)
        if not answers:
            return response
        code: Any = context.code()  # type: ignore[attr-defined]
        return answers[-1] if code in (None, grpc.StatusCode.OK) else b""

    return run


def _run_in(pool: futures.Executor, behavior: Callable[..., Any]) -> Callable[..., Any]:
    """The same behavior, run in a pool of ours."""

    def run(request: Any, context: grpc.ServicerContext) -> Any:
        return behavior(request, context)

    setattr(run, POOL, pool)
    return run


def _kind(handler: Handler) -> Any:
    return _MAKE[bool(handler.request_streaming), bool(handler.response_streaming)]


def _for_bytes(handler: Handler) -> Handler:
    make, arity = _kind(handler)
    return make(
        getattr(handler, arity),
        splitting(handler.request_deserializer),
        joining(handler.response_serializer),
    )


def _refuse(_: object, context: grpc.ServicerContext) -> NoReturn:
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
    raise AssertionError("abort raises")
