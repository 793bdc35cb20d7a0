# SPDX-License-Identifier: Apache-2.0
"""Stubs and servicers that protoc generated, with messages as ``Attached`` where that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from tensorwire import rpc
from tensorwire.protobuf.attached import Attached, received
from tensorwire.protobuf.fields import Choice, Plan, plan_of
from tensorwire.protobuf.wire import LARGE, take_apart
from tensorwire.rpc.client.multicallable import Calling
from tensorwire.rpc.instrumentation import bare

S = TypeVar("S")
Transform = Callable[[Any], Any]

_ARITIES: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def stub(
    stub_class: Callable[[Any], S],
    channel: grpc.Channel | grpc.aio.Channel,
    *,
    views: bool | Iterable[str] = False,
) -> S:
    """``stub_class(channel)`` whose methods take messages, and ``Attached`` in place of them.

    channel: of tensorwire, a peer among them, or stock, with or without interceptors around it.

    views: which bytes fields of replies come as views. The methods whose replies have such fields,
    at any depth, return ``Attached``, whoever sent them; the others return messages, as all do with
    False. True: all fields that hold LARGE bytes (64 KiB) or more. Names, as
    ``"raw_output_contents"`` or ``"inference.ModelInferResponse.raw_output_contents"``: these
    fields, of any length.

    Raises ``ValueError`` for a name that no reply has a bytes field of.
    """
    codec = Codec(views, isinstance(bare(channel), Calling))
    made = stub_class(_Channel(channel, codec))
    codec.check("reply")
    return made


def add_to_server(
    add: Callable[[Any, Any], object],
    servicer: object,
    server: grpc.Server | grpc.aio.Server,
    *,
    views: bool | Iterable[str] = False,
) -> None:
    """``add(servicer, server)``, an ``add_...Servicer_to_server`` that protoc generated, with
    methods that may return ``Attached`` in place of messages.

    server: of tensorwire or stock. views: which bytes fields of requests come as views, as for
    ``stub``. The methods whose requests have such fields are given ``Attached``.

    Raises ``ValueError`` for a name that no request has a bytes field of.
    """
    codec = Codec(views, isinstance(server, rpc.Server))
    adding = _Server(server, codec)
    add(servicer, adding)
    codec.check("request")
    adding.add()


class Codec:
    """What becomes of serializers and deserializers."""

    def __init__(self, views: bool | Iterable[str], segments: bool) -> None:
        names = None
        if not isinstance(views, bool):
            names = frozenset((views,) if isinstance(views, str) else views)
        self._wanted = bool(views) if names is None else bool(names)
        self._choice = Choice(names)
        self._segments = segments

    def check(self, kind: str) -> None:
        unknown = (self._choice.names or frozenset()) - self._choice.met
        if unknown:
            raise ValueError(f"no {kind} has a bytes field {', '.join(sorted(unknown))}")

    def serializer(self, original: Transform | None) -> Transform | None:
        if original is None:
            return None
        join = not self._segments

        def serialize(message: Any) -> Any:
            if not isinstance(message, Attached):
                return original(message)
            segments = message.segments()
            return b"".join(segments) if join else segments

        return serialize

    def deserializer(self, original: Transform | None) -> Transform | None:
        if original is None or not self._wanted:
            return original
        example: Any = original(b"")
        if not isinstance(example, Message):
            return original
        plan = plan_of(example.DESCRIPTOR, self._choice)
        if not plan:
            return original
        least = LARGE if self._choice.names is None else 1
        return _Deserializer(original, plan, least)


class _Deserializer:
    """Gives ``Attached``."""

    __tensorwire_segments__ = True

    def __init__(self, original: Transform, plan: Plan, least: int) -> None:
        self._original = original
        self._plan = plan
        self._least = least

    def __call__(self, message: Any) -> Attached[Any]:
        """``message``: segments, or bytes from stock gRPC."""
        buffers = message if isinstance(message, list) else [message]
        segments = [memoryview(buffer) for buffer in buffers]
        parts = take_apart(segments, self._plan, self._least)
        if parts is not None:
            skeleton, found = parts
            try:
                attached = received(self._original(skeleton), found)
            except Exception:  # whatever it is, the whole message decides
                attached = None
            if attached is not None:
                return attached
        return Attached(self._original(b"".join(segments)))


class _Channel:
    """As much of a channel as generated stubs use."""

    def __init__(self, channel: Any, codec: Codec) -> None:
        for arity in _ARITIES:
            setattr(self, arity, _multicallables(getattr(channel, arity), codec))


def _multicallables(make: Callable[..., Any], codec: Codec) -> Callable[..., Any]:
    def multicallable(
        method: str,
        request_serializer: Transform | None = None,
        response_deserializer: Transform | None = None,
        **options: Any,
    ) -> Any:
        serializer = codec.serializer(request_serializer)
        return make(method, serializer, codec.deserializer(response_deserializer), **options)

    return multicallable


class _Server:
    """As much of a server as generated code uses. What is added waits for ``add``."""

    def __init__(self, server: Any, codec: Codec) -> None:
        self._server = server
        self._codec = codec
        self._generic: list[grpc.GenericRpcHandler] = []
        self._registered: dict[str, dict[str, Any]] = {}

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        for handler in handlers:
            methods = {
                name.rpartition("/")[2]: method for name, method in handler._method_handlers.items()
            }
            service = handler.service_name()
            coded = self._coded(methods)
            self._generic.append(grpc.method_handlers_generic_handler(service, coded))

    def add_registered_method_handlers(self, service: str, methods: Mapping[str, Any]) -> None:
        self._registered[service] = self._coded(methods)

    def _coded(self, methods: Mapping[str, Any]) -> dict[str, Any]:
        coded = {}
        for name, method in methods.items():
            arity = _ARITIES[2 * bool(method.request_streaming) + bool(method.response_streaming)]
            coded[name] = getattr(grpc, f"{arity}_rpc_method_handler")(
                getattr(method, arity),
                self._codec.deserializer(method.request_deserializer),
                self._codec.serializer(method.response_serializer),
            )
        return coded

    def add(self) -> None:
        self._server.add_generic_rpc_handlers(tuple(self._generic))
        for service, methods in self._registered.items():
            self._server.add_registered_method_handlers(service, methods)
