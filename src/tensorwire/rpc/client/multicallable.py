# SPDX-License-Identifier: Apache-2.0
"""What ``channel.unary_unary(...)`` and its siblings return: one method of a server, callable.

Each call takes the link where there is one, else whatever ``Way.route`` says. Each method declares
the arguments of gRPC's own, by its names and in its order. ``UnaryUnary.__call__`` has the shortest
way written out, because it is what small calls spend their time in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import grpc

from tensorwire import _core
from tensorwire.log import LOGGER
from tensorwire.rpc import metadata as meta
from tensorwire.rpc import status
from tensorwire.rpc.client import blocking
from tensorwire.rpc.client.blocking import running_loop
from tensorwire.rpc.client.call import (
    BAD_REQUEST,
    BAD_RESPONSE,
    ActiveCall,
    ResponseFuture,
    ResponseStream,
    SuccessfulCall,
)
from tensorwire.rpc.client.requests import iterator_of, send_all
from tensorwire.rpc.options import Limits, bounded
from tensorwire.rpc.payload import (
    Transform,
    deserialized,
    joining,
    serialized,
    splitting,
    takes_segments,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer as BytesLike

    _UnaryUnary = grpc.UnaryUnaryMultiCallable[Any, Any]
    _UnaryStream = grpc.UnaryStreamMultiCallable[Any, Any]
    _StreamUnary = grpc.StreamUnaryMultiCallable[Any, Any]
    _StreamStream = grpc.StreamStreamMultiCallable[Any, Any]
else:
    _UnaryUnary = grpc.UnaryUnaryMultiCallable
    _UnaryStream = grpc.UnaryStreamMultiCallable
    _StreamUnary = grpc.StreamUnaryMultiCallable
    _StreamStream = grpc.StreamStreamMultiCallable

Metadata = Iterable[tuple[str | bytes, str | bytes]] | None


class CallOptions(NamedTuple):
    """Of a call, in the order in which gRPC's methods take them."""

    timeout: float | None = None
    """In seconds."""
    metadata: Metadata = None
    credentials: grpc.CallCredentials | None = None
    wait_for_ready: bool | None = None
    compression: grpc.Compression | None = None


# grpcio counts deadlines in nanoseconds since 1970, in 64 bits. One that does not fit has passed,
# and so has NaN.
_LONGEST_SECONDS = 2**63 / 1e9 - time()

_TOO_LATE = (status.DEADLINE_EXCEEDED, "Deadline Exceeded")


class Way(Protocol):
    """How a channel's calls go."""

    limits: Limits

    @property
    def link(self) -> _core.Peer | None:
        """What calls take while it is alive."""

    @property
    def stock(self) -> grpc.Channel:
        """What other calls take. CallError: there is none."""

    def route(
        self, timeout: float | None, wait_for_ready: bool | None, metadata: Metadata = None
    ) -> tuple[_core.Peer | None, float | None]:
        """The link that a call takes (None: gRPC), and how much of its timeout is left. metadata:
        the call's. Raises CallError where there is no way."""


class _MultiCallable:
    """``arity`` is the name of the channel's method for it."""

    arity = ""

    def __init__(
        self,
        way: Way,
        name: str | bytes,
        serializer: Transform | None,
        deserializer: Transform | None,
        registered: bool | None,
    ) -> None:
        self._way = way
        self._name = name.decode() if isinstance(name, bytes) else name
        self._serializer = bounded(serializer, way.limits.send)
        self._deserializer = deserializer
        self._of_stock = joining(serializer), splitting(deserializer)
        # Older versions do not know the argument, and do not generate code that passes it.
        self._named = {"_registered_method": True} if registered else {}
        self._raw = takes_segments(deserializer)
        self._by_grpc: Any = None
        self._told = False

    def _tell(self) -> None:
        """A call that blocks has begun in a thread whose event loop runs: told once."""
        if not self._told:
            blocking.warn(f"a call of {self._name}")
            self._told = True

    def _stock(self) -> Any:
        """The same method on stock gRPC."""
        channel = self._way.stock  # each time: it says no in a forked child
        stock = self._by_grpc
        if stock is None:
            make = getattr(channel, self.arity)
            stock = self._by_grpc = make(self._name, *self._of_stock, **self._named)
        return stock

    def _route(self, options: CallOptions) -> tuple[_core.Peer | None, CallOptions]:
        """The link that a call takes (None: gRPC), and its options for that: with what is left of
        the timeout, and metadata that can be gone through again."""
        timeout, metadata, credentials, wait_for_ready, compression = options
        metadata = _kept(metadata)
        if timeout is not None and not 0 < timeout < _LONGEST_SECONDS:
            timeout = -1.0
        link = None
        if credentials is None:  # else gRPC decides whether they may be sent
            link, timeout = self._way.route(timeout, wait_for_ready, metadata)
        return link, CallOptions(timeout, metadata, credentials, wait_for_ready, compression)

    def _serialized(self, request: Any) -> Any:
        """Raises CallError; StatusError for a request that is too large."""
        if self._serializer is not None:
            request = serialized(self._serializer, request)
        if request is None:
            raise status.CallError(*BAD_REQUEST)
        return request

    def _begin(
        self,
        kind: type[ActiveCall],
        one_request: bool,
        request: Any,
        options: CallOptions,
    ) -> Any:
        """A call in progress; a CallError in its place when it could not begin. ``request`` is an
        iterable unless ``one_request``. Raises CallError when that one cannot be serialized."""
        try:
            link, options = self._route(options)
        except status.CallError as error:
            return error.begun()
        if link is None:
            stock = self._stock()
            if not one_request:
                request = iterator_of(request)
            return (stock.future if kind is ResponseFuture else stock)(request, *options)
        return self._start(link, kind, one_request, request, options)

    def _start(
        self,
        link: _core.Peer,
        kind: type[ActiveCall],
        one_request: bool,
        request: Any,
        options: CallOptions,
    ) -> Any:
        """As ``_begin``, on the data plane."""
        timeout, metadata, *_ = options
        try:
            message = self._serialized(request) if one_request else None
        except _core.StatusError as error:
            return status.BegunCallError(error.code, error.details)
        try:
            pairs = status.call_metadata(metadata)
            if timeout is not None and timeout <= 0:
                return status.BegunCallError(*_TOO_LATE)
            call = link.start(
                self._name, timeout, pairs, message, one_request, kind is ResponseStream
            )
        except status.CallError as error:
            return error.begun()
        except _core.StatusError as error:
            return status.BegunCallError(error.code, error.details)
        begun = kind(call, self._deserializer, self._way)  # whose loss cancels the call
        if not one_request:
            send_all(request, call, self._serializer)
        return begun


def _kept(metadata: Metadata) -> Metadata:
    """Can be gone through again: by Open, and then by the call."""
    return metadata if metadata is None or hasattr(metadata, "__len__") else tuple(metadata)


class UnaryUnary(_MultiCallable, _UnaryUnary):
    arity = "unary_unary"

    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Metadata = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        # Written out for speed: the arguments, and what ``serialized``, ``deserialized`` and
        # ``_call`` do, too. Each Python function between would add to the time of a small call.
        if running_loop() is not None:
            self._tell()
        link = self._way.link
        try:
            if link is None or metadata is not None or credentials is not None or not link.alive:
                options = CallOptions(timeout, metadata, credentials, wait_for_ready, compression)
                return self._call(request, options, False)
            serializer = self._serializer
            if serializer is not None:
                try:
                    request = serializer(request)
                except _core.StatusError:
                    raise
                except Exception:
                    LOGGER.exception("exception serializing a request")
                    request = None
            if request is None:
                raise status.CallError(*BAD_REQUEST)
            if timeout is not None and not 0 < timeout < _LONGEST_SECONDS:
                raise status.CallError(*_TOO_LATE)
            number, details, response, initial, trailing = link.unary(
                self._name, request, timeout, None, self._raw
            )
        except _core.StatusError as error:
            raise status.CallError(error.code, error.details) from None
        if number:
            raise status.CallError(number, details, meta.incoming(initial), meta.incoming(trailing))
        deserializer = self._deserializer
        if deserializer is None or response is None:
            return response
        try:
            response = deserializer(response)
        except Exception:
            LOGGER.exception("exception deserializing a response")
            response = None
        if response is None:
            raise status.CallError(*BAD_RESPONSE)
        return response

    def _call(
        self,
        request: Any,
        options: CallOptions,
        with_call: bool,
        into: Sequence[BytesLike | None] | None = None,
    ) -> Any:
        """Any unary call: the response, or with the ended call if ``with_call``. into: as
        ``receive_into`` takes it."""
        link, options = self._route(options)
        if link is None:
            stock = self._stock()
            return (stock.with_call if with_call else stock)(request, *options)
        timeout, metadata, *_ = options
        message = self._serialized(request)
        pairs = status.call_metadata(metadata)
        if timeout is not None and timeout <= 0:
            raise status.CallError(*_TOO_LATE)
        number, details, response, first, last = link.unary(
            self._name, message, timeout, pairs, self._raw, into
        )
        initial, trailing = meta.incoming(first), meta.incoming(last)
        if number:
            raise status.CallError(number, details, initial, trailing)
        if response is not None and self._deserializer is not None:
            response = deserialized(self._deserializer, response)
            if response is None:
                raise status.CallError(*BAD_RESPONSE, initial, trailing)
        if not with_call:
            return response
        return response, SuccessfulCall(response, details, initial, trailing)

    def receive_into(
        self,
        request: Any,
        into: Sequence[BytesLike | None],
        timeout: float | None = None,
        metadata: Metadata = None,
        wait_for_ready: bool | None = None,
    ) -> Any:
        """As calling it. into: memory for the segments of the response, by their places in it, into
        which large ones are received as far as the link does that; they are that memory then.
        Nobody writes there any more once this returns, or raises. The deserializer takes
        segments."""
        if running_loop() is not None:
            self._tell()
        options = CallOptions(timeout, metadata, None, wait_for_ready)
        try:
            return self._call(request, options, False, into)
        except _core.StatusError as error:
            raise status.CallError(error.code, error.details) from None

    def with_call(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Metadata = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> tuple[Any, grpc.Call]:
        if running_loop() is not None:
            self._tell()
        options = CallOptions(timeout, metadata, credentials, wait_for_ready, compression)
        try:
            response: tuple[Any, grpc.Call] = self._call(request, options, True)
        except _core.StatusError as error:
            raise status.CallError(error.code, error.details) from None
        return response

    def future(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Metadata = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        options = CallOptions(timeout, metadata, credentials, wait_for_ready, compression)
        return self._begin(ResponseFuture, True, request, options)


class UnaryStream(_MultiCallable, _UnaryStream):
    arity = "unary_stream"

    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Metadata = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        options = CallOptions(timeout, metadata, credentials, wait_for_ready, compression)
        return self._begin(ResponseStream, True, request, options)


class StreamUnary(_MultiCallable, _StreamUnary):
    arity = "stream_unary"

    def __call__(
        self,
        request_iterator: Iterable[Any],
        timeout: float | None = None,
        metadata: Metadata = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        return self.with_call(
            request_iterator, timeout, metadata, credentials, wait_for_ready, compression
        )[0]

    def with_call(
        self,
        request_iterator: Iterable[Any],
        timeout: float | None = None,
        metadata: Metadata = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> tuple[Any, grpc.Call]:
        if running_loop() is not None:
            self._tell()
        options = CallOptions(timeout, metadata, credentials, wait_for_ready, compression)
        link, options = self._route(options)
        if link is None:
            answer: tuple[Any, grpc.Call] = self._stock().with_call(
                iterator_of(request_iterator), *options
            )
            return answer
        call = self._start(link, ResponseFuture, False, request_iterator, options)
        try:
            return call.wait_for_result(), call
        except BaseException:
            call.cancel()  # Ctrl-C
            raise

    def future(
        self,
        request_iterator: Iterable[Any],
        timeout: float | None = None,
        metadata: Metadata = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        options = CallOptions(timeout, metadata, credentials, wait_for_ready, compression)
        return self._begin(ResponseFuture, False, request_iterator, options)


class StreamStream(_MultiCallable, _StreamStream):
    arity = "stream_stream"

    def __call__(
        self,
        request_iterator: Iterable[Any],
        timeout: float | None = None,
        metadata: Metadata = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        options = CallOptions(timeout, metadata, credentials, wait_for_ready, compression)
        return self._begin(ResponseStream, False, request_iterator, options)


class Calling(grpc.Channel):
    """The methods by which stubs make their calls."""

    def __init__(self, way: Way) -> None:
        self._way = way

    def unary_unary(
        self,
        method: str | bytes,
        request_serializer: Transform | None = None,
        response_deserializer: Transform | None = None,
        _registered_method: bool | None = False,
    ) -> UnaryUnary:
        return UnaryUnary(
            self._way, method, request_serializer, response_deserializer, _registered_method
        )

    def unary_stream(
        self,
        method: str | bytes,
        request_serializer: Transform | None = None,
        response_deserializer: Transform | None = None,
        _registered_method: bool | None = False,
    ) -> UnaryStream:
        return UnaryStream(
            self._way, method, request_serializer, response_deserializer, _registered_method
        )

    def stream_unary(
        self,
        method: str | bytes,
        request_serializer: Transform | None = None,
        response_deserializer: Transform | None = None,
        _registered_method: bool | None = False,
    ) -> StreamUnary:
        return StreamUnary(
            self._way, method, request_serializer, response_deserializer, _registered_method
        )

    def stream_stream(
        self,
        method: str | bytes,
        request_serializer: Transform | None = None,
        response_deserializer: Transform | None = None,
        _registered_method: bool | None = False,
    ) -> StreamStream:
        return StreamStream(
            self._way, method, request_serializer, response_deserializer, _registered_method
        )
