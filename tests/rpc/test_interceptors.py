# SPDX-License-Identifier: Apache-2.0
"""Interceptors of either side over every pairing: grpcio's own machinery on our objects."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from tests.rpc.pairings import Pairing, local
from tests.rpc.service import path

from tensorwire.rpc import bootstrap


class AddMetadata(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """At the client: every call gets a pair of metadata; ``seen`` are the methods."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def _intercept(self, continuation: Any, details: Any, request: Any) -> Any:
        self.seen.append(details.method)
        metadata = (*(details.metadata or ()), ("x-added", "by the interceptor"))
        return continuation(details._replace(metadata=metadata), request)

    intercept_unary_unary: Any = _intercept
    intercept_unary_stream: Any = _intercept
    intercept_stream_unary: Any = _intercept
    intercept_stream_stream: Any = _intercept


def test_client_interceptor(channel: Any) -> None:
    interceptor = AddMetadata()
    intercepted: Any = grpc.intercept_channel(channel, interceptor)
    _, call = intercepted.unary_unary(path("metadata")).with_call(b"")
    assert ("initial-x-added", "by the interceptor") in call.initial_metadata()
    assert intercepted.unary_unary(path("echo"))(b"x") == b"x"
    assert intercepted.unary_unary(path("echo")).future(b"y").result() == b"y"
    assert list(intercepted.unary_stream(path("count"))(b"2")) == [b"0", b"1"]
    assert intercepted.stream_unary(path("total"))(iter([b"1", b"2"])) == b"3"
    assert list(intercepted.stream_stream(path("chat"))(iter([b"a"]))) == [b"a"]
    assert [name.rpartition("/")[2] for name in interceptor.seen] == [
        "metadata",
        "echo",
        "echo",
        "count",
        "total",
        "chat",
    ]


def test_client_interceptor_sees_failures(channel: Any) -> None:
    codes: list[Any] = []

    class Watch(grpc.UnaryUnaryClientInterceptor):
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            call = continuation(details, request)
            codes.append(call.code())
            return call

    intercepted: Any = grpc.intercept_channel(channel, Watch())
    with pytest.raises(grpc.RpcError) as caught:
        intercepted.unary_unary(path("set_code"))(b"gone")
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "gone"
    future = intercepted.unary_unary(path("set_code")).future(b"gone")
    assert future.exception().code() is grpc.StatusCode.NOT_FOUND
    assert codes == [grpc.StatusCode.NOT_FOUND] * 2


def test_client_interceptor_that_answers_itself(channel: Any) -> None:
    class Retry(grpc.UnaryUnaryClientInterceptor):
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            call = continuation(details, request)
            if call.code() is grpc.StatusCode.UNKNOWN:
                return continuation(details._replace(method=path("echo")), request)
            return call

    intercepted: Any = grpc.intercept_channel(channel, Retry())
    assert intercepted.unary_unary(path("fail"))(b"again") == b"again"


# ------------------------------------------------------------------------------- at the server

_who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


class Guard(grpc.ServerInterceptor):
    """Refuses calls without a token; passes the caller's name on in a context variable."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: Any
    ) -> Any:
        self.seen.append(handler_call_details.method)
        metadata = dict(handler_call_details.invocation_metadata)
        if metadata.get("x-token") != "secret":

            def refuse(_: object, context: grpc.ServicerContext) -> None:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")

            return grpc.unary_unary_rpc_method_handler(refuse)
        _who.set(metadata["x-name"])
        return continuation(handler_call_details)


class Shout(grpc.ServerInterceptor):
    """Wraps the handler."""

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: Any
    ) -> Any:
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler

        def loud(request: bytes, context: grpc.ServicerContext) -> Any:
            return handler.unary_unary(request, context).upper()

        return grpc.unary_unary_rpc_method_handler(loud)


def who(request: bytes, context: grpc.ServicerContext) -> bytes:
    name = _who.get().encode()
    _who.set("somebody who was here before")
    return name


def names(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    yield _who.get().encode()


WHO = grpc.method_handlers_generic_handler(
    "test.Who",
    {
        "Who": grpc.unary_unary_rpc_method_handler(who),
        "Names": grpc.unary_stream_rpc_method_handler(names),
    },
)


def token(name: str) -> tuple[tuple[str, str], ...]:
    return (("x-token", "secret"), ("x-name", name))


def test_server_interceptors(pairing: Pairing) -> None:
    guard = Guard()
    with (
        local(pairing.server, interceptors=[guard, Shout()], handlers=[WHO]) as server,
        pairing.channel(server.target) as channel,
    ):
        echo = channel.unary_unary(path("echo"))
        with pytest.raises(grpc.RpcError) as caught:
            echo(b"x")
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert error.details() == "no token"
        assert echo(b"quiet", metadata=token("a")) == b"QUIET"
        ask = channel.unary_unary("/test.Who/Who")
        for name in ("anna", "ben", "carla"):
            assert ask(b"", metadata=token(name)) == name.upper().encode()
        assert list(channel.unary_stream("/test.Who/Names")(b"", metadata=token("d"))) == [b"d"]
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(path("nowhere"))(b"", metadata=token("a"))
        error = caught.value
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        if pairing.client == "tensorwire" == pairing.server:
            assert channel.path().transport == pairing.transport
    if pairing.server == "tensorwire":
        others = [name for name in guard.seen if not name.startswith("/test.")]
        assert set(others) <= {bootstrap.METHOD}


def test_context_variables_do_not_leak_between_calls(pairing: Pairing) -> None:
    with (
        local(pairing.server, handlers=[WHO], workers=1) as server,
        pairing.channel(server.target) as channel,
    ):
        ask = channel.unary_unary("/test.Who/Who")
        assert [ask(b"") for _ in range(3)] == [b"nobody"] * 3


def test_server_interceptor_that_raises(pairing: Pairing) -> None:
    class Broken(grpc.ServerInterceptor):
        def intercept_service(
            self, continuation: Callable[[Any], Any], handler_call_details: Any
        ) -> Any:
            raise ValueError("an interceptor that fails")

    with (
        local(pairing.server, interceptors=[Broken()]) as server,
        pairing.channel(server.target) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary(path("echo"))(b"x")
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNKNOWN
    assert error.details() == "Error in service handler!"


class ByMetadata(grpc.GenericRpcHandler):
    """A handler that looks at more than the name."""

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method != "/test.Any/Thing":
            return None
        reply = dict(handler_call_details.invocation_metadata).get("x-reply", "none").encode()
        return grpc.unary_unary_rpc_method_handler(lambda request, context: reply)


def test_generic_handler_that_looks_at_metadata(pairing: Pairing) -> None:
    with (
        local(pairing.server, handlers=[ByMetadata()]) as server,
        pairing.channel(server.target) as channel,
    ):
        method = channel.unary_unary("/test.Any/Thing")
        assert method(b"", metadata=(("x-reply", "one"),)) == b"one"
        assert method(b"", metadata=(("x-reply", "two"),)) == b"two"
        assert channel.unary_unary(path("echo"))(b"x") == b"x"
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/test.Any/Other")(b"")
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_registered_methods_come_first(pairing: Pairing) -> None:
    def answer(text: bytes) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: text)

    generic = grpc.method_handlers_generic_handler("test.Two", {"Ask": answer(b"generic")})

    def prepare(server: Any) -> None:
        server.add_registered_method_handlers("test.Two", {"Ask": answer(b"registered")})

    with (
        local(pairing.server, handlers=[generic], prepare=prepare) as server,
        pairing.channel(server.target) as channel,
    ):
        method = channel.unary_unary("/test.Two/Ask", _registered_method=True)
        assert method(b"") == b"registered"
