# SPDX-License-Identifier: Apache-2.0
"""Interceptors of a server see Open with the metadata of the call that asks for a link, and may
refuse it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from tests.rpc import channels
from tests.rpc.pairings import DATA_PLANE, Local, Pairing, local
from tests.rpc.service import LIMIT_SECONDS, path
from tests.rpc.test_interceptors import AddMetadata
from tests.transports import HERE

import tensorwire
from tensorwire import _core
from tensorwire.rpc import bootstrap, refusals
from tensorwire.rpc.client import idle

TOKEN = (("x-token", "secret"),)
BEST: Any = HERE[0]


class Guard(grpc.ServerInterceptor):
    """An authentication as users write them; ``seen`` are the calls that came, with metadata."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[tuple[str, Any]]]] = []
        self.token = TOKEN[0]

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        metadata = list(map(tuple, handler_call_details.invocation_metadata))
        self.seen.append((handler_call_details.method, metadata))
        if self.token in metadata:
            return continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(self.refuse)

    def refuse(self, _: object, context: grpc.ServicerContext) -> Any:
        context.set_trailing_metadata((("x-realm", "tests"),))
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")

    def methods(self) -> list[str]:
        return [method for method, _ in self.seen]

    @property
    def opens(self) -> int:
        return self.methods().count(bootstrap.METHOD)


@pytest.fixture
def guard() -> Guard:
    return Guard()


@pytest.fixture
def server(guard: Guard) -> Iterator[Local]:
    with local("tensorwire", interceptors=[guard]) as server:
        yield server


@pytest.fixture(params=DATA_PLANE, ids=str)
def required(request: pytest.FixtureRequest, server: Local) -> Iterator[Any]:
    """A channel whose calls have no way but one transport."""
    pairing: Pairing = request.param
    with pairing.channel(server.target) as channel:
        yield channel


@pytest.fixture
def auto(server: Local) -> Iterator[Any]:
    with tensorwire.insecure_channel(server.target) as channel:
        yield channel


# Nothing that was refused is tried again within a test.
LONG_PAUSES = (10 * LIMIT_SECONDS,) * 5


def echo(channel: Any, **options: Any) -> Any:
    return channel.unary_unary(path("echo"))(b"x", **options)


def refused(channel: Any, **options: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        echo(channel, **options)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert error.details() == "no token"
    assert ("x-realm", "tests") in [tuple(pair) for pair in error.trailing_metadata()]
    return error


# ------------------------------------------------------------------------------ who gets a session


def test_a_stranger_gets_no_session(server: Local) -> None:
    with grpc.insecure_channel(server.target) as stock:
        ask: Any = stock.unary_unary(bootstrap.METHOD)
        with pytest.raises(grpc.RpcError) as caught:
            ask(_core.hello())
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert ask(_core.hello(), metadata=TOKEN)


def test_no_answer_beside_an_error() -> None:
    """Of an interceptor that looks after the handler."""

    class Late(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
            handler = continuation(handler_call_details)

            def behave(request: bytes, context: grpc.ServicerContext) -> Any:
                response = handler.unary_unary(request, context)
                context.set_code(grpc.StatusCode.PERMISSION_DENIED)
                return response

            return grpc.unary_unary_rpc_method_handler(behave)

    came: list[bytes] = []

    def keep(response: bytes) -> bytes:
        came.append(response)
        return response

    with (
        local("tensorwire", interceptors=[Late()]) as server,
        grpc.insecure_channel(server.target) as stock,
    ):
        method: Any = stock.unary_unary(bootstrap.METHOD, None, keep)
        with pytest.raises(grpc.RpcError) as caught:
            method(_core.hello())
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert not any(came)


def test_a_required_transport(required: Any, guard: Guard) -> None:
    refused(required)
    assert guard.methods() == [bootstrap.METHOD]
    assert required.path().transport == "none"
    assert any("UNAUTHENTICATED: no token" in why for why in required.path().reasons.values())
    assert echo(required, metadata=TOKEN) == b"x"
    assert required.path().transport in HERE


def test_auto(auto: Any, guard: Guard) -> None:
    refused(auto)
    assert guard.methods() == [bootstrap.METHOD, path("echo")]
    assert auto.path().transport == "grpc"
    assert "UNAUTHENTICATED: no token" in auto.path().reasons[BEST]
    assert echo(auto, metadata=TOKEN) == b"x"
    assert auto.path().transport == BEST


def test_the_first_call_has_the_token(auto: Any, guard: Guard) -> None:
    assert echo(auto, metadata=TOKEN) == b"x"
    assert auto.path().transport == BEST
    assert guard.methods() == [bootstrap.METHOD, path("echo")]


@pytest.mark.parametrize("begin", ["future", "with_call", "stream"])
def test_calls_of_each_kind_ask_with_their_metadata(required: Any, begin: str) -> None:
    methods = {
        "future": lambda **options: (
            required.unary_unary(path("echo")).future(b"1", **options).result()
        ),
        "with_call": lambda **options: required.stream_unary(path("total")).with_call(
            iter([b"1"]), **options
        )[0],
        "stream": lambda **options: next(required.unary_stream(path("count"))(b"1", **options)),
    }
    with pytest.raises(grpc.RpcError) as caught:
        methods[begin]()
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert methods[begin](metadata=iter(TOKEN)) in (b"0", b"1")


def test_client_interceptors_give_open_their_metadata(required: Any, guard: Guard) -> None:
    guard.token = ("x-added", "by the interceptor")
    interceptor = AddMetadata()
    assert echo(grpc.intercept_channel(required, interceptor)) == b"x"
    assert interceptor.seen == [path("echo")]
    assert guard.opens == 1


# ----------------------------------------------------------------------- a link gives no authority


def test_calls_on_a_link_are_asked_for_their_own_token(required: Any, guard: Guard) -> None:
    assert echo(required, metadata=TOKEN) == b"x"
    for _ in range(2):
        refused(required)
    assert echo(required, metadata=TOKEN) == b"x"
    assert guard.methods() == [bootstrap.METHOD, *[path("echo")] * 4]


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_a_link_of_a_closed_channel_gives_none(
    pairing: Pairing, server: Local, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "KEEP_SECONDS", LIMIT_SECONDS)
    try:
        with pairing.channel(server.target) as channel:
            assert echo(channel, metadata=TOKEN) == b"x"
        with pairing.channel(server.target) as channel:
            refused(channel)
            assert echo(channel, metadata=TOKEN) == b"x"
        assert guard.opens == 1
    finally:
        idle.clear()


# ---------------------------------------------------------------------------- how often it is asked


@pytest.mark.parametrize("transport", ["auto", BEST])
def test_the_same_metadata_are_not_offered_again_at_once(
    guard: Guard, server: Local, transport: Any
) -> None:
    with channels.channel(server.target, transport=transport, pauses=LONG_PAUSES) as channel:
        for _ in range(5):
            refused(channel)
        assert guard.opens == 1
        assert echo(channel, metadata=TOKEN) == b"x"
        assert guard.opens == 2
        assert channel.stats()["opened"] == 1


@pytest.mark.parametrize("transport", ["auto", BEST])
def test_the_same_metadata_may_be_accepted_later(
    guard: Guard, server: Local, transport: Any
) -> None:
    later = ("x-token", "issued a moment ago")
    with channels.channel(server.target, transport=transport, pauses=(0.0,) * 5) as channel:
        refused(channel, metadata=(later,))
        assert guard.opens == 1
        guard.token = later
        assert echo(channel, metadata=(later,)) == b"x"
        assert channel.path().transport == BEST


def test_metadata_that_differ_in_each_call_do_not_make_each_ask(
    guard: Guard, server: Local
) -> None:
    with channels.channel(server.target, pauses=LONG_PAUSES) as auto:
        for number in range(3 * refusals.MOST):
            refused(auto, metadata=(("x-request", str(number)),))
    assert guard.opens == refusals.MOST


@pytest.mark.parametrize("transport", HERE)
def test_metadata_that_differ_in_each_call_keep_no_token_out(
    guard: Guard, server: Local, transport: str
) -> None:
    """Where there is no other way, each call has a right to its own answer."""
    numbers = itertools.count()
    with channels.channel(server.target, transport=transport, pauses=LONG_PAUSES) as required:
        for _ in range(2 * refusals.MOST):
            refused(required, metadata=(("x-request", str(next(numbers))),))
        assert guard.opens == 2 * refusals.MOST
        assert echo(required, metadata=(*TOKEN, ("x-request", str(next(numbers))))) == b"x"


@pytest.mark.parametrize("transport", ["auto", BEST])
def test_calls_that_wait_for_what_another_one_is_refused(server: Local, transport: Any) -> None:
    with (
        ThreadPoolExecutor(16) as pool,
        tensorwire.insecure_channel(server.target, transport=transport) as channel,
    ):
        begun = [
            pool.submit(refused, channel)
            if number % 2
            else pool.submit(echo, channel, metadata=TOKEN)
            for number in range(16)
        ]
        for call in begun:
            call.result(LIMIT_SECONDS)
        while channel.stats()["opened"] == 0:
            assert echo(channel, metadata=TOKEN) == b"x"
        assert channel.path().transport == BEST


# ------------------------------------------------------------------------------ what Open carries


def test_open_carries_what_a_call_by_grpc_would(server: Local, guard: Guard) -> None:
    given = (
        *TOKEN,
        ("x-key-bin", b"\0\xff"),
        ("x-key-bin", b""),
        (b"x-bytes", b"text"),
        ("user-agent", "forged"),
        ("grpc-tags-bin", b"x"),
        ("te", "x"),
    )
    with grpc.insecure_channel(server.target) as stock:
        assert echo(stock, metadata=given) == b"x"
    with tensorwire.insecure_channel(server.target, transport=BEST) as channel:
        assert echo(channel, metadata=given) == b"x"
    by_grpc, by_open, _ = (
        [(key, value) for key, value in metadata if key != "user-agent"]
        for _, metadata in guard.seen
    )
    assert sorted(by_open) == sorted(by_grpc)
    assert [value for key, value in guard.seen[1][1] if key == "user-agent"] != ["forged"]


def test_open_leaves_out_what_a_server_may_refuse(required: Any, guard: Guard) -> None:
    large = (("x-large", "y" * 20_000), ("x-large-bin", bytes(6000)))
    assert echo(required, metadata=(*large, *TOKEN)) == b"x"
    (_, opened), (_, called) = guard.seen
    assert [key for key, _ in opened if key.startswith("x-")] == ["x-token"]
    assert [key for key, _ in called if key.startswith("x-")] == [
        "x-large",
        "x-large-bin",
        "x-token",
    ]


def test_metadata_that_cannot_travel_are_the_calls_own_error(required: Any, guard: Guard) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        echo(required, metadata=(("X-Token", "secret"),))
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "X-Token" in error.details()
    assert guard.seen == []


# --------------------------------------------------------- interceptors that do not know the method


class Known(grpc.ServerInterceptor):
    """Knows the methods of its own service."""

    def __init__(self, otherwise: str) -> None:
        self._otherwise = otherwise

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler_call_details.method == path("echo"):
            return handler
        if self._otherwise == "raise":
            raise KeyError(handler_call_details.method)
        if self._otherwise == "none":
            return None

        def behave(request: Any, context: grpc.ServicerContext) -> Any:
            if self._otherwise == "abort":
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "unknown method")
            return handler.unary_unary(request.name, context)  # of a message, which this is not

        return grpc.unary_unary_rpc_method_handler(behave)


@pytest.mark.parametrize(
    ("otherwise", "told"),
    [
        ("raise", "UNKNOWN: Error in service handler!"),
        ("none", "Method not found!"),
        ("abort", "PERMISSION_DENIED: unknown method"),
        ("behave", "UNKNOWN: Exception calling application"),
    ],
)
def test_an_interceptor_that_knows_other_methods_only(
    otherwise: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level("INFO", "tensorwire"),
        local("tensorwire", interceptors=[Known(otherwise)]) as server,
        tensorwire.insecure_channel(server.target) as channel,
    ):
        for _ in range(2):
            assert echo(channel) == b"x"
        assert channel.path().transport == "grpc"
    (line,) = [line for line in caplog.messages if "calls go by grpc" in line]
    assert told in line
