# SPDX-License-Identifier: Apache-2.0
"""The client's side of a service: a proxy with the methods of the class."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import grpc

from tensorwire import tensors
from tensorwire.rpc.client.multicallable import UnaryUnary
from tensorwire.service.description import Method, service_of
from tensorwire.service.messages import as_encoded, as_received, encoder_for
from tensorwire.tensors import DecodeError

if TYPE_CHECKING:
    from typing_extensions import Buffer as BytesLike

    from tensorwire.tensors import Framework

P = ParamSpec("P")
T = TypeVar("T")
Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True)
class _Options:
    timeout: float | None
    metadata: Metadata | None
    wait_for_ready: bool | None
    framework: Framework
    into: Sequence[BytesLike | None] | None = None
    writable: bool = False


def client(
    cls: type[T],
    channel: grpc.Channel,
    *,
    timeout: float | None = None,
    metadata: Metadata | None = None,
    wait_for_ready: bool | None = None,
    framework: Framework = "numpy",
) -> T:
    """A proxy with the methods of ``cls``, a class that ``define`` marked, over ``channel``.

    timeout (seconds for each call), metadata and wait_for_ready are those of a gRPC call;
    ``with_options`` changes them. framework: what tensors in replies become.

    Methods raise ``TypeError`` for arguments that do not fit the signature or cannot travel and
    ``ValueError`` for those against a ``TensorSpec``, both before anything is sent;
    ``grpc.RpcError`` with status code and details when the call fails; ``DecodeError`` for a reply
    that is damaged or against the annotation. A streamed reply is an iterator, whose ``close``
    cancels the call.
    """
    described = service_of(cls)
    calls: dict[str, Callable[..., Any]] = {}
    for name, method in described.methods.items():
        make: Any = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, False): channel.stream_unary,
            (True, True): channel.stream_stream,
        }[method.stream is not None, method.stream_reply]
        calls[name] = make(
            method.path, request_serializer=as_encoded, response_deserializer=as_received
        )
    methods = {name: _proxy_method(method) for name, method in described.methods.items()}
    proxy_class = type(f"{cls.__name__}Client", (_Proxy,), methods)
    options = _Options(timeout, metadata, wait_for_ready, framework)
    return typing.cast(T, proxy_class(calls, encoder_for(channel), options))


def with_options(client: T, **options: Any) -> T:
    """The same client with other options for its calls: those of ``client()``, by name.

    into: memory, bytes-like, C-contiguous and writable, in which segments of a reply are wanted, by
    their places in the message; None: anywhere. Large ones that a link of tensorwire's brings in
    chunks, and that have exactly that size, are received there, and the tensors of the reply lie
    over it. After an error it may have been written to, but is not any more.

    writable: NumPy arrays in replies may be written, which nobody else sees, as ``tensors.loads``
    tells.
    """
    if not isinstance(client, _Proxy):
        raise TypeError(f"a {type(client).__name__} was not made by service.client")
    changed = replace(client._options, **options)
    return typing.cast(T, type(client)(client._calls, client._encode, changed))


def future(method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Begins a call of a client's method, and does not wait for its reply:
    ``future(model.predict, batch).result()`` is ``model.predict(batch)``.

    Raises what the method raises before anything is sent, and ``TypeError`` for a method that
    streams its reply (iterate over it), and for what is no method of a client.
    """
    begin = getattr(method, "__tensorwire_begin__", None)
    proxy = getattr(method, "__self__", None)
    if begin is None or not isinstance(proxy, _Proxy):
        raise TypeError(f"{method!r} is no method of a service.client")
    return typing.cast("Future[T]", begin(proxy, *args, **kwargs))


class Future(Generic[T]):
    """A reply that is on its way. Thread-safe."""

    def __init__(self, method: Method, call: Any, proxy: _Proxy, requests: _Requests | None):
        self._method = method
        self._call = call
        self._proxy = proxy
        self._requests = requests

    def result(self, timeout: float | None = None) -> T:
        """The reply. timeout: seconds to wait here; the call goes on beyond it.

        Raises what the method raises once it has been sent, ``grpc.FutureTimeoutError``, and
        ``grpc.FutureCancelledError`` after ``cancel()``.
        """
        try:
            message = self._call.result(timeout)
        except grpc.RpcError:
            _raise_cause(self._requests)
            raise
        return typing.cast(T, self._proxy._decode(self._method, message))

    def cancel(self) -> bool:
        """Ends the call. False when it has ended before."""
        return bool(self._call.cancel())

    def cancelled(self) -> bool:
        return bool(self._call.cancelled())

    def done(self) -> bool:
        """Whether ``result`` would return, or raise, at once."""
        return bool(self._call.done())

    def add_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """``callback(self)`` on another thread once the call has ended; here if it has."""
        self._call.add_done_callback(lambda _: callback(self))


class _Proxy:
    """State of a client; ``client`` derives a class with the methods of the service."""

    def __init__(
        self,
        calls: Mapping[str, Callable[..., Any]],
        encode: Callable[[object], Any],
        options: _Options,
    ) -> None:
        self._calls = calls
        self._encode = encode
        self._options = options

    def _call(self, method: Method, arguments: dict[str, Any]) -> Any:
        message, requests = self._requests(method, arguments)
        try:
            reply = self._reached(method)(message, **self._keywords())
        except grpc.RpcError:
            _raise_cause(requests)
            raise
        if method.stream_reply:
            return _Replies(self, method, reply, requests)
        return self._decode(method, reply)

    def _reached(self, method: Method) -> Callable[..., Any]:
        """What makes the call: other channels than tensorwire's receive nothing into memory."""
        call = self._calls[method.name]
        if self._options.into is None or not isinstance(call, UnaryUnary):
            return call
        return functools.partial(call.receive_into, into=self._options.into)

    def _begin(self, method: Method, arguments: dict[str, Any]) -> Future[Any]:
        if method.stream_reply:
            raise TypeError(f"{method.name}() streams its reply: call it, and iterate over that")
        message, requests = self._requests(method, arguments)
        multicallable: Any = self._calls[method.name]
        return Future(method, multicallable.future(message, **self._keywords()), self, requests)

    def _requests(self, method: Method, arguments: dict[str, Any]) -> tuple[Any, _Requests | None]:
        """What to call with; with a streamed parameter that is all of its messages."""
        items: Any = None
        if method.stream:
            default = method.signature.parameters[method.stream].default
            items = arguments.pop(method.stream, default)
            if items is None and default is None:
                items = ()
        wrong = method.argument_objection(arguments)
        if wrong:
            raise ValueError(f"{method.path}: {wrong}")
        request = self._encode(arguments)
        if not method.stream:
            return request, None
        requests = _Requests(method, request, iter(items), self._encode)
        return requests, requests

    def _keywords(self) -> dict[str, Any]:
        options = self._options
        return {
            "timeout": options.timeout,
            "metadata": options.metadata,
            "wait_for_ready": options.wait_for_ready,
        }

    def _decode(self, method: Method, message: Any) -> Any:
        try:
            reply = tensors.loads(
                message, framework=self._options.framework, writable=self._options.writable
            )
        except DecodeError as error:
            raise DecodeError(f"reply of {method.path}: {error}") from None
        wrong = method.reply_objection(reply)
        if wrong:
            raise DecodeError(f"reply of {method.path}: {wrong}")
        return reply


class _Replies(Iterator[Any]):
    """The items of a streamed reply.

    No generator: one that has not begun runs no ``finally`` when it is closed, and since Python
    3.12 keeps what it refers to.
    """

    _call: Any = None
    """None after its end."""

    def __init__(
        self, proxy: _Proxy, method: Method, call: Any, requests: _Requests | None
    ) -> None:
        self._decode = functools.partial(proxy._decode, method)
        self._requests = requests
        self._messages: Iterator[Any] | None = None
        self._call = call

    def __next__(self) -> Any:
        try:
            messages = self._messages
            if messages is None:
                messages = self._begin()
            return self._decode(next(messages))
        except BaseException as error:
            self.close()
            if isinstance(error, grpc.RpcError):
                _raise_cause(self._requests)
            raise

    def _begin(self) -> Iterator[Any]:
        if self._call is None:
            raise StopIteration
        # Not before: it warns of an event loop in the thread that waits for the first.
        messages: Iterator[Any] = iter(self._call)
        self._messages = messages
        return messages

    def close(self) -> None:
        """Ends the call, unless it has ended. Also from another thread, whose ``next`` then raises
        CANCELLED."""
        call, self._call, self._messages = self._call, None, None
        if call is not None:
            call.cancel()

    def __del__(self) -> None:
        self.close()


class _Requests:
    """The messages of a call with a streamed parameter: its arguments, then the items.

    gRPC takes them in a thread of its own, so an error of the user's iterator is kept for the
    caller, who would see nothing but a cancelled call.
    """

    def __init__(
        self, method: Method, first: Any, items: Iterator[Any], encode: Callable[[object], Any]
    ) -> None:
        self.error: BaseException | None = None
        self._messages = self._encoded(method, first, items, encode)

    def _encoded(
        self, method: Method, first: Any, items: Iterator[Any], encode: Callable[[object], Any]
    ) -> Iterator[Any]:
        yield first
        for index, item in enumerate(items):
            wrong = method.item_objection(item, index)
            if wrong:
                raise ValueError(f"{method.path}: {wrong}")
            yield encode(item)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._messages)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise
        except BaseException as error:
            self.error = error
            # SystemExit and the like end grpcio's thread, and leave a call that nobody ends.
            raise RuntimeError("the iterator of a streamed parameter was left") from error


def _raise_cause(requests: _Requests | None) -> None:
    if requests is not None and requests.error is not None:
        raise requests.error from None


def _proxy_method(method: Method) -> Callable[..., Any]:
    signature = method.signature

    def bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            return dict(signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"{method.name}(): {error}") from None

    def call(self: _Proxy, /, *args: Any, **kwargs: Any) -> Any:
        return self._call(method, bound(args, kwargs))

    def begin(self: _Proxy, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._begin(method, bound(args, kwargs))

    call.__name__ = method.name
    call.__qualname__ = method.name
    call.__doc__ = method.doc
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    shown = [itself, *signature.parameters.values()]
    call.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    call.__tensorwire_begin__ = begin  # type: ignore[attr-defined]
    return call
