# SPDX-License-Identifier: Apache-2.0
"""What is used of grpcio and of Python although it is private or experimental: all of it, so that a
new version of either is looked for here only. Where something is missing, callers are told."""

from __future__ import annotations

import atexit
import sys
import threading
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Collection
from concurrent import futures
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc import _channel as stock_channels
from grpc import _server as stock_servers

if TYPE_CHECKING:
    StockError = grpc.RpcError
    StockStream = grpc.RpcError
else:
    # What grpcio raises for a call that has ended, and from a future or a stream of responses:
    # what programs catch.
    StockError = stock_channels._InactiveRpcError
    StockStream = stock_channels._MultiThreadedRendezvous

__all__ = ["StockError", "StockStream", "at_end_of_main_thread", "running_loop"]

# ------------------------------------------------------------------------------- the interpreter

at_end_of_main_thread: Final[Callable[[Callable[[], None]], object]] = getattr(
    threading, "_register_atexit", atexit.register
)
"""What concurrent.futures uses: runs once the main thread has ended, before its threads are waited
for; the last one registered comes first."""


def level_outside(packages: Collection[str]) -> int:
    """For a function that warns: the ``stacklevel`` of the nearest caller that belongs to none of
    these packages."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in packages:
        frame = frame.f_back
        level += 1
    return level


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]


# --------------------------------------------------------------------------------------- servers

DictionaryHandler: Final = type(grpc.method_handlers_generic_handler("", {}))
"""Its answer depends on nothing but the method's name; other handlers may look at metadata."""

Interceptors = tuple[grpc.ServerInterceptor, ...]


def interceptors(server: grpc.Server) -> Interceptors | None:
    """Those of a stock server, in their order; None for one of an unknown kind."""
    found = getattr(_pipeline(server), "interceptors", None)
    return found if isinstance(found, tuple) else None


def replace_interceptors(server: grpc.Server, replacement: Interceptors) -> None:
    """Of a server for which ``interceptors`` has an answer."""
    _pipeline(server).interceptors = replacement


def _pipeline(server: Any) -> Any:
    return getattr(getattr(server, "_state", None), "interceptor_pipeline", None)


POOL: Final = "experimental_thread_pool"
"""An attribute of a handler's behavior: the pool in which it wants to be called."""
NON_BLOCKING: Final = "experimental_non_blocking"
"""Another one: that it streams responses by a callback; grpcio's health service does."""

_RESPOND: Final = getattr(stock_servers, "_unary_response_in_pool", None)
_RECEIVE: Final[Any] = getattr(stock_servers, "_receive_message", None)
_RECEIVING: Final = getattr(stock_servers, "_RECEIVE_MESSAGE_TOKEN", None)
_OPERATIONS: Final[Any] = getattr(stock_servers, "cygrpc", None)


class RequestFirst(futures.ThreadPoolExecutor):
    """A ``POOL`` of unary behaviors, which takes no thread before a call's request is there. In
    grpcio's own way a thread waits for it, and a client that never sends it keeps the thread.

    here: the behavior runs in the stock server's own thread, which brings the request. It must be
    quick: all calls of the server wait for it.
    """

    def __init__(self, threads: int, name: str, *, here: bool = False) -> None:
        super().__init__(threads, name)
        self._here = here

    def submit(self, run: Any, /, *args: Any, **named: Any) -> futures.Future[Any]:
        if len(args) != 7 or args[0] is not _RESPOND or _RECEIVE is None:
            return super().submit(run, *args, **named)  # grpcio does it in another way
        respond, event, state, behavior, wait, deserializer, serializer = args
        receive = _RECEIVE(state, event.call, deserializer)
        over: futures.Future[Any] = futures.Future()

        def received(what: Any) -> Any:
            answer = receive(what)
            with state.condition:
                request, state.request = state.request, None
            # Of a call without a request, the stock server knows what to say.
            get = wait if request is None else lambda: request
            job = (run, respond, event, state, behavior, get, deserializer, serializer)
            self._serve(job, over, here=self._here and request is not None)
            return answer

        event.call.start_server_batch((_OPERATIONS.ReceiveMessageOperation(0),), received)
        state.due.add(_RECEIVING)
        return over

    def _serve(self, job: Any, over: futures.Future[Any], *, here: bool) -> None:
        try:
            if here:
                job[0](*job[1:])
                over.set_result(None)
            else:
                super().submit(*job).add_done_callback(over.set_result)
        except RuntimeError:  # shut down
            over.set_result(None)


# -------------------------------------------------------------------------------------- channels


def is_stock(channel: grpc.Channel) -> bool:
    """Whether it is grpcio's own, without interceptors."""
    return isinstance(channel, stock_channels.Channel)


def layers(channel: Any) -> list[Any]:
    """From the outermost to the channel that makes calls; those before it are interceptors."""
    found = [channel]
    while isinstance(inner := getattr(found[-1], "_channel", None), grpc.Channel):
        found.append(inner)
    return found


def put_inside(layer: Any, inner: grpc.Channel) -> None:
    """``layer``: one of ``layers`` that has another one in it."""
    layer._channel = inner


class Layer:
    """A channel that looks like an interceptor around another one: tools look there whether theirs
    is among a channel's."""

    def resemble(self, layer: Any) -> None:
        self._channel: Any = layer._channel
        self._interceptor: Any = getattr(layer, "_interceptor", None)


def is_replaced(function: Callable[..., Any]) -> bool:
    """Whether a tool has put another one in the place of a function of grpcio."""
    return type(function) is not FunctionType or function.__code__.co_filename != grpc.__file__
