# SPDX-License-Identifier: Apache-2.0
"""Runs a handler for one call: one function for each arity, all of the form ``(method, call) ->
Ending``. What users see of failures is as with grpcio."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tensorwire import _core
from tensorwire.log import LOGGER
from tensorwire.rpc import status
from tensorwire.rpc.payload import deserialized
from tensorwire.rpc.serving.context import CallContext, context_of

if TYPE_CHECKING:
    from tensorwire.rpc.serving.methods import Method

Ending = tuple[int, str, Any, Any] | None
"""Code, details, trailing metadata and last message of a call: the arguments of its ``finish``.
None when there is nothing to finish any more."""

Run = Callable[["Method", _core.ServerCall], Ending]


def unary_unary(method: Method, call: _core.ServerCall) -> Ending:
    context = context_of(call)
    try:
        request = _request(method, call, context)
    except _NoRequestError as error:
        return error.ending
    try:
        response = method.enter().run(method.behavior, request, context)
    except BaseException as error:
        return _failed(context, error)
    request = None  # what it holds on lease goes home before the reply leaves
    return _respond(method, context, response)


def stream_unary(method: Method, call: _core.ServerCall) -> Ending:
    context = context_of(call)
    requests = _Requests(method, call, context)
    try:
        response = method.enter().run(method.behavior, requests, context)
    except BaseException as error:
        return _ended(context, _failed(context, error))
    return _ended(context, _respond(method, context, response))


def unary_stream(method: Method, call: _core.ServerCall) -> Ending:
    context = context_of(call)
    try:
        request = _request(method, call, context)
    except _NoRequestError as error:
        return error.ending
    return method.enter().run(_stream, method, call, context, request)


def stream_stream(method: Method, call: _core.ServerCall) -> Ending:
    context = context_of(call)
    requests = _Requests(method, call, context)
    return _ended(context, method.enter().run(_stream, method, call, context, requests))


def _stream(method: Method, call: _core.ServerCall, context: CallContext, argument: Any) -> Ending:
    send = call.send
    serializer = method.serializer
    iterating = False
    try:
        responses = method.behavior(argument, context)
        iterating = True
        for response in responses:
            if response is None:
                break
            try:
                send(response if serializer is None else serializer(response))
            except _core.StatusError as error:
                return _over(call, context, error)
            except Exception:
                return _bad_response(context)
            context.began = True
    except BaseException as error:
        return _failed(context, error, iterating)
    return (*context.ending(), None)


def non_blocking(method: Method, call: _core.ServerCall) -> Ending:
    """For a handler that returns at once, and gives its responses to a function later: what grpcio
    calls ``experimental_non_blocking``, which its health service uses."""
    context = context_of(call)
    serializer = method.serializer

    def send(response: Any) -> None:
        """None ends the call."""
        if response is None:
            context.over = True
            call.finish(*context.ending())
            return
        try:
            call.send(response if serializer is None else serializer(response))
        except _core.StatusError as error:
            ending = _over(call, context, error)
        except Exception:
            ending = _bad_response(context)
        else:
            context.began = True
            return
        if ending is not None:
            _ended(context, ending)
            call.finish(*ending)

    try:
        argument = (
            _Requests(method, call, context)
            if method.request_streaming
            else _request(method, call, context)
        )
    except _NoRequestError as error:
        return error.ending
    try:
        method.enter().run(method.behavior, argument, context, send)
    except BaseException as error:
        return _ended(context, _failed(context, error))
    return None


def _respond(method: Method, context: CallContext, response: Any) -> Ending:
    serializer = method.serializer
    if serializer is not None:
        try:
            response = serializer(response)
        except _core.StatusError as error:
            return (*context.ending(error.code, error.details), None)
        except Exception:
            return _bad_response(context)
    if response is None:
        return _bad_response(context)
    if context.chosen_code is None and context.chosen_trailing is None:  # nearly always
        return 0, "", None, response
    code, details, trailing = context.ending()
    return code, details, trailing, None if code else response


def within(run: Run, most: int) -> Run:
    """The same for calls whose metadata are ``most`` bytes at most, counted as gRPC does."""

    def checked(method: Method, call: _core.ServerCall) -> Ending:
        size = sum(32 + len(key) + len(value) for key, value in call.metadata or ())
        if size > most:
            details = f"received metadata size exceeds hard limit ({size} vs. {most})"
            return status.RESOURCE_EXHAUSTED, details, None, None
        return run(method, call)

    return checked


class _NoRequestError(Exception):
    def __init__(self, ending: Ending) -> None:
        super().__init__()
        self.ending = ending


def _request(method: Method, call: _core.ServerCall, context: CallContext) -> Any:
    """The one request. Raises _NoRequestError."""
    try:
        request: Any = call.receive(method.raw)
    except _core.StatusError as error:
        raise _NoRequestError(_over(call, context, error)) from None
    if request is None:
        details = f'"{call.method}" requires exactly one request message.'
        raise _NoRequestError((status.UNIMPLEMENTED, details, None, None))
    deserializer = method.deserializer
    if deserializer is not None:
        request = deserialized(deserializer, request, "request")
        if request is None:
            raise _NoRequestError((*context.ending(*_BAD_REQUEST), None))
    return request


class _Requests:
    """The request iterator. Once the call has ended at the client it raises CallEndedError; a
    thread that still reads when the handler has ended the call gets no further request."""

    def __init__(self, method: Method, call: _core.ServerCall, context: CallContext) -> None:
        self._messages = call.messages(method.raw)
        self._deserializer = method.deserializer
        self._call = call
        self._context = context

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            message = next(self._messages)
        except _core.StatusError as error:
            if self._context.over:
                raise StopIteration from None
            raise status.CallEndedError(error.details) from None
        deserializer = self._deserializer
        if deserializer is None:
            return message
        request = deserialized(deserializer, message, "request")
        if request is None:
            self._context.over = True
            self._call.finish(*self._context.ending(*_BAD_REQUEST))
            raise StopIteration
        return request

    next = __next__


_BAD_REQUEST: Final = (status.INTERNAL, "Exception deserializing request!")


def _bad_response(context: CallContext) -> Ending:
    LOGGER.error("a response could not be serialized", exc_info=True)
    return (*context.ending(status.INTERNAL, "Failed to serialize response!"), None)


def _ended(context: CallContext, ending: Ending) -> Ending:
    """Notes, for threads that read requests, that the handler ends the call, not the client."""
    if ending is not None:
        context.over = context.is_active()
    return ending


def _over(call: _core.ServerCall, context: CallContext, error: _core.StatusError) -> Ending:
    """After an error of the runtime: mostly the call is over, else it ends with that error."""
    return (*context.ending(error.code, error.details), None) if call.active else None


def _failed(context: CallContext, error: BaseException, iterating: bool = False) -> Ending:
    """The ending of a call whose handler raised."""
    if isinstance(error, status.CallEndedError) and not context.is_active():
        return None  # an error of another call's end leaves this one to be ended
    if context.aborted:
        return (*context.ending(status.UNKNOWN, "RPC Aborted"), None)
    doing = "iterating responses" if iterating else "calling application"
    try:
        details = f"Exception {doing}: {error}"
    except Exception:
        details = "Calling application raised unprintable Exception!"
    LOGGER.error(details, exc_info=error)
    return (*context.ending(status.UNKNOWN, details), None)
