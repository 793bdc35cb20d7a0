# SPDX-License-Identifier: Apache-2.0
"""The server's side of a service: handlers that decode, check, call and encode."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from tensorwire import tensors
from tensorwire.service.description import Method, service_of
from tensorwire.service.messages import as_encoded, as_received, encoder_for
from tensorwire.tensors import DecodeError

if TYPE_CHECKING:
    from tensorwire.tensors import Framework

_log = logging.getLogger("tensorwire.service")
_END: Final = object()
# A status travels in HTTP/2 headers, for which stock gRPC leaves 8 KB by default.
_MAX_DETAILS: Final = 1000

_current: contextvars.ContextVar[grpc.ServicerContext] = contextvars.ContextVar("current call")


class ServiceError(Exception):
    """Raised by a method to end the call with this status code and sentence."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details


def context() -> grpc.ServicerContext:
    """The call that is being served: deadline, metadata, peer. ``LookupError`` outside of one."""
    return _current.get()


def add_to_server(instance: object, server: grpc.Server) -> None:
    """Serves the methods of ``instance``, whose class (or a base) is marked by ``define``.

    What a method raises ends its call only: ``ServiceError`` with its own status, anything else
    with UNKNOWN, the exception's type and its text. Arguments that are damaged, unknown, missing or
    against a ``TensorSpec`` end it with INVALID_ARGUMENT, a result that cannot travel or is against
    one with INTERNAL.

    Raises TypeError for what is no such instance.
    """
    if isinstance(instance, type):
        name = instance.__name__
        raise TypeError(
            f"{name} is a class: give an object of it, as {name}(), whose methods serve"
        )
    described = service_of(type(instance))
    encode = encoder_for(server)
    handlers: dict[str, Any] = {}
    for name, method in described.methods.items():
        served = _Served(method, getattr(instance, name), described.framework, encode)
        make, behaviour = {
            (False, False): (grpc.unary_unary_rpc_method_handler, served.unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, served.unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, served.stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, served.stream_stream),
        }[method.stream is not None, method.stream_reply]
        handlers[name] = make(
            behaviour, request_deserializer=as_received, response_serializer=as_encoded
        )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(described.name, handlers),)
    )


class _Served:
    """One method of an instance as the four kinds of gRPC handlers."""

    def __init__(
        self,
        method: Method,
        function: Callable[..., Any],
        framework: Framework,
        encode: Callable[[object], Any],
    ) -> None:
        self._method = method
        self._function = function
        self._framework = framework
        self._encode = encode

    def unary_unary(self, request: Any, call: grpc.ServicerContext) -> Any:
        with self._ending(call):
            args, kwargs = self._bind(self._decode(request), {})
            return self._reply(self._context(call).run(self._function, *args, **kwargs))

    def unary_stream(self, request: Any, call: grpc.ServicerContext) -> Iterator[Any]:
        with self._ending(call):
            args, kwargs = self._bind(self._decode(request), {})
            yield from self._replies(self._context(call), args, kwargs)

    def stream_unary(self, requests: Iterator[Any], call: grpc.ServicerContext) -> Any:
        with self._ending(call):
            args, kwargs = self._bind_stream(requests)
            return self._reply(self._context(call).run(self._function, *args, **kwargs))

    def stream_stream(self, requests: Iterator[Any], call: grpc.ServicerContext) -> Iterator[Any]:
        with self._ending(call):
            args, kwargs = self._bind_stream(requests)
            yield from self._replies(self._context(call), args, kwargs)

    def _context(self, call: grpc.ServicerContext) -> contextvars.Context:
        found = contextvars.copy_context()
        found.run(_current.set, call)
        return found

    @contextlib.contextmanager
    def _ending(self, call: grpc.ServicerContext) -> Iterator[None]:
        """Turns what a method raises into the status of its call."""
        try:
            yield
        except ServiceError as error:
            call.abort(error.code, error.details[:_MAX_DETAILS])
        except Exception as error:
            # context.abort() leaves the method by an exception too, with the status already set.
            ending: Any = call
            if ending.code() is not None or not call.is_active():
                raise
            _log.exception("%s raised", self._method.path)
            call.abort(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}"[:_MAX_DETAILS])

    def _decode(self, request: Any) -> Any:
        try:
            return tensors.loads(request, framework=self._framework)
        except DecodeError as error:
            self._refuse(str(error))

    def _refuse(self, reason: str) -> NoReturn:
        raise ServiceError(grpc.StatusCode.INVALID_ARGUMENT, f"{self._method.path}: {reason}")

    def _bind(
        self, arguments: Any, streamed: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        signature = self._method.signature
        if not isinstance(arguments, dict):
            self._refuse(f"arguments are a dict by name, not a {type(arguments).__name__}")
        for name, value in arguments.items():
            parameter = signature.parameters.get(name)
            if parameter is None or name in streamed:
                self._refuse(f"no parameter {name!r:.80}")
            if parameter.kind is parameter.VAR_POSITIONAL and not isinstance(value, tuple):
                self._refuse(f"argument {name}: expected a tuple")
            if parameter.kind is parameter.VAR_KEYWORD and not (
                isinstance(value, dict) and all(isinstance(key, str) for key in value)
            ):
                self._refuse(f"argument {name}: expected a dict by name")
        wrong = self._method.argument_objection(arguments)
        if wrong:
            self._refuse(wrong)
        bound = inspect.BoundArguments(signature, {**arguments, **streamed})
        args, kwargs = bound.args, bound.kwargs
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            self._refuse(str(error))
        return args, kwargs

    def _bind_stream(self, requests: Iterator[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        first = next(requests, _END)
        if first is _END:
            self._refuse("the stream ended before the arguments")
        return self._bind(self._decode(first), {str(self._method.stream): self._items(requests)})

    def _items(self, requests: Iterator[Any]) -> Iterator[Any]:
        for index, request in enumerate(requests):
            item = self._decode(request)
            wrong = self._method.item_objection(item, index)
            if wrong:
                self._refuse(wrong)
            yield item

    def _reply(self, result: Any) -> Any:
        try:
            wrong = self._method.reply_objection(result)
            message = None if wrong else self._encode(result)
        except (TypeError, ValueError) as error:
            wrong = str(error)
        if wrong:
            raise ServiceError(grpc.StatusCode.INTERNAL, f"result of {self._method.path}: {wrong}")
        return message

    def _replies(
        self, in_context: contextvars.Context, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[Any]:
        results = iter(in_context.run(self._function, *args, **kwargs))
        try:
            while (result := in_context.run(next, results, _END)) is not _END:
                yield self._reply(result)
        finally:
            # A client that went away ends the method now, not at the next garbage collection.
            close = getattr(results, "close", None)
            if close is not None:
                in_context.run(close)
