# SPDX-License-Identifier: Apache-2.0
"""Unary calls over every pairing and transport: results, errors, and what goes with them."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest
from tests.rpc.pairings import Pairing, local
from tests.rpc.service import LIMIT_SECONDS, path, refuse


def call(channel: Any, method: str, request: bytes = b"", **options: Any) -> Any:
    return channel.unary_unary(path(method))(request, **options)


def failure(channel: Any, method: str, request: bytes = b"", **options: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, method, request, **options)
    error: Any = caught.value
    assert isinstance(error, grpc.Call)
    return error


@pytest.mark.parametrize("size", [0, 1, 8, 5_000, 70_000, 3_000_000])
def test_echo(channel: Any, size: int) -> None:
    request = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert call(channel, "echo", request) == request


def test_method_name_as_bytes(channel: Any) -> None:
    assert channel.unary_unary(path("echo").encode())(b"x") == b"x"


def test_serializers(channel: Any) -> None:
    method = channel.unary_unary(
        path("echo"),
        request_serializer=str.encode,
        response_deserializer=lambda data: data.decode().upper(),
    )
    assert method("text") == "TEXT"


def test_with_call(channel: Any) -> None:
    response, ended = channel.unary_unary(path("metadata")).with_call(
        b"", metadata=(("x-key", "value"),)
    )
    assert response == b""
    assert ended.code() is grpc.StatusCode.OK
    assert ended.details() == ""
    assert ("initial-x-key", "value") in ended.initial_metadata()
    assert ("trailing-x-key", "value") in ended.trailing_metadata()
    assert not ended.is_active()
    assert not ended.cancel()
    assert ended.time_remaining() is None
    assert not ended.add_callback(lambda: None)


METADATA = (("x-text", "some text!"), ("x-more", "1"), ("x-more", "2"), ("x-raw-bin", b"\0\xff\n"))


def test_metadata_both_ways(channel: Any) -> None:
    _, ended = channel.unary_unary(path("metadata")).with_call(b"", metadata=METADATA)
    initial = [pair for pair in ended.initial_metadata() if pair[0].startswith("initial-")]
    trailing = [pair for pair in ended.trailing_metadata() if pair[0].startswith("trailing-")]
    assert initial == [(f"initial-{key}", value) for key, value in METADATA]
    assert trailing == [(f"trailing-{key}", value) for key, value in METADATA]
    assert initial[0].key == "initial-x-text"
    assert initial[0].value == "some text!"


def test_bytes_as_metadata(channel: Any) -> None:
    _, ended = channel.unary_unary(path("metadata")).with_call(
        b"", metadata=((b"x-key", b"value"), (b"x-raw-bin", b"\0"))
    )
    assert ("initial-x-key", "value") in ended.initial_metadata()
    assert ("trailing-x-raw-bin", b"\0") in ended.trailing_metadata()


def test_metadata_that_grpc_keeps_for_itself(channel: Any) -> None:
    given = ("te", "content-type", "grpc-timeout", "user-agent", "grpc-encoding", "grpc-trace-bin")
    metadata = [("b", "1"), *((key, b"1") for key in given), ("a", "2")]
    keys = call(channel, "keys", metadata=metadata).split()
    assert [key for key in keys if key != b"user-agent"] == [b"b", b"a"]


def test_forbidden_metadata_of_a_server(channel: Any) -> None:
    for method in ("bad_initial", "bad_trailing"):
        error = failure(channel, method)
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details().startswith("Invalid metadata")
    response, ended = channel.unary_unary(path("mended_trailing")).with_call(b"")
    assert response == b"seen"
    assert ended.trailing_metadata() == (("lower", "x"),)


@pytest.mark.parametrize("pair", [("UPPER", "x"), ("spa ce", "x"), ("x-new", "line\n")])
def test_forbidden_metadata(channel: Any, pair: tuple[str, str]) -> None:
    with pytest.raises((grpc.RpcError, ValueError)):
        call(channel, "echo", b"x", metadata=(pair,))
    assert call(channel, "echo", b"x") == b"x"


@pytest.mark.parametrize("pair", [("x-raw-bin", "text"), ("x-text", 1)])
def test_metadata_of_a_wrong_type(channel: Any, pair: Any) -> None:
    with pytest.raises(TypeError):
        call(channel, "echo", b"x", metadata=(pair,))
    assert call(channel, "echo", b"x") == b"x"


@pytest.mark.parametrize(
    "code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
)
def test_abort(channel: Any, code: grpc.StatusCode) -> None:
    error = failure(channel, "abort", b"why: \xc3\xa4", metadata=(("code", code.name),))
    assert error.code() is code
    assert error.details() == "why: ä"
    assert ("why", "aborted") in error.trailing_metadata()
    assert error.done()
    assert error.exception() is error
    assert error.debug_error_string() is not None
    assert code.name in str(error)
    with pytest.raises(type(error)):
        error.result()


def test_long_details_come_as_a_whole(channel: Any) -> None:
    """As long as gRPC's own limit of headers lets them be; also of a call that is a future."""
    why = "why " * 1700
    told = (("code", "DATA_LOSS"),)
    error = failure(channel, "abort", why.encode(), metadata=told)
    assert (error.code(), error.details()) == (grpc.StatusCode.DATA_LOSS, why)
    method = channel.unary_unary(path("abort"))
    assert method.future(why.encode(), metadata=told).details() == why


def test_abort_with_ok_is_an_error(channel: Any) -> None:
    assert failure(channel, "abort", b"x", metadata=(("code", "OK"),)).code() is (
        grpc.StatusCode.UNKNOWN
    )


def test_code_and_details_that_a_handler_sets(channel: Any) -> None:
    error = failure(channel, "set_code", b"not here")
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "not here"


def test_abort_that_the_handler_swallows(channel: Any) -> None:
    error = failure(channel, "swallowed_abort")
    assert error.code() is grpc.StatusCode.DATA_LOSS
    assert error.details() == "swallowed"


def test_handler_that_raises(channel: Any) -> None:
    error = failure(channel, "fail", b"boom")
    assert error.code() is grpc.StatusCode.UNKNOWN
    assert error.details() == "Exception calling application: boom"


def test_handler_that_raises_after_it_set_a_code(channel: Any) -> None:
    error = failure(channel, "fail_with_code", b"boom")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "Exception calling application: boom"


def test_handler_that_returns_none(channel: Any) -> None:
    error = failure(channel, "nothing")
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "Failed to serialize response!"


@pytest.mark.parametrize("name", ["test.Raw/echo", "echo", "odd name"])
def test_method_without_a_slash(channel: Any, pairing: Pairing, name: str) -> None:
    """A handler may serve it; that of a service does not."""
    method = channel.unary_unary(name)
    with pytest.raises(grpc.RpcError) as caught:
        method(b"x")
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED

    class Named(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda *_: details.method.encode())

    with local(pairing.server, handlers=[Named()]) as here, pairing.channel(here.target) as to_it:
        assert to_it.unary_unary(name)(b"x") == name.encode()


def test_unknown_method(channel: Any) -> None:
    error = failure(channel, "no_such_method")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.details() == "Method not found!"


def test_bad_request_serializer(channel: Any, caplog: pytest.LogCaptureFixture) -> None:
    method = channel.unary_unary(path("echo"), request_serializer=refuse)
    for invoke in (method, method.with_call, method.future):
        with pytest.raises(grpc.RpcError) as caught:
            invoke(b"x")
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details() == "Exception serializing request!"
    assert "a transform that fails" in caplog.text


def test_none_as_request(channel: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(path("echo"))(None)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INTERNAL


def test_request_that_is_no_message(channel: Any, pairing: Any) -> None:
    # Behind a joining serializer gRPC reports it as one that failed.
    with pytest.raises((TypeError, grpc.RpcError)):
        channel.unary_unary(path("echo"))(5)
    assert call(channel, "echo", b"x") == b"x"


def test_bad_response_deserializer(channel: Any, caplog: pytest.LogCaptureFixture) -> None:
    method = channel.unary_unary(path("echo"), response_deserializer=refuse)
    for invoke in (method, method.with_call, lambda request: method.future(request).result()):
        with pytest.raises(grpc.RpcError) as caught:
            invoke(b"x")
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details() == "Exception deserializing response!"
    assert "a transform that fails" in caplog.text


def test_bad_transforms_at_the_server(channel: Any) -> None:
    error = failure(channel, "bad_request", b"x")
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "Exception deserializing request!"
    error = failure(channel, "bad_response", b"x")
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "Failed to serialize response!"


def test_context(channel: Any) -> None:
    code, details, kind, peer = call(channel, "about").decode().split(" ")
    assert (code, details, kind) == ("None", "None", "[b'insecure']")
    assert peer.startswith(("ipv4:127.0.0.1:", "unix:"))


def test_user_agent(pairing: Pairing) -> None:
    class Agents(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            seen = dict(details.invocation_metadata)["user-agent"]
            return grpc.unary_unary_rpc_method_handler(
                lambda _, context: (
                    f"{seen}|{dict(context.invocation_metadata())['user-agent']}".encode()
                )
            )

    options = [("grpc.primary_user_agent", "first"), ("grpc.secondary_user_agent", "last")]
    with (
        local(pairing.server, handlers=[Agents()]) as here,
        pairing.channel(here.target, options=options) as channel,
    ):
        answer = channel.unary_unary("/any/Agent")(b"", metadata=(("user-agent", "mine"),))
        agent, same = answer.decode().split("|")
        assert agent == same
        assert agent.startswith("first grpc-python/")
        assert agent.endswith(" last")


def test_clients_are_told_apart(pairing: Pairing, processes: dict[str, str]) -> None:
    peers = []
    for name in ("one", "other"):  # grpcio's channels with the same options share a connection
        options = [("grpc.primary_user_agent", name)]
        with pairing.channel(processes[pairing.server], options=options) as channel:
            peer, again = (call(channel, "about").split()[-1] for _ in range(2))
            assert peer == again
            peers.append(peer)
    assert all(peer.startswith(b"ipv4:127.0.0.1:") for peer in peers)
    assert peers[0] != peers[1]


def test_initial_metadata_is_sent_once(channel: Any) -> None:
    response, ended = channel.unary_unary(path("initial_twice")).with_call(b"")
    assert response == b"refused"
    assert ("a", "1") in ended.initial_metadata()


def test_deadline_reaches_the_handler(channel: Any) -> None:
    left = float(call(channel, "time_left", timeout=1000))
    assert 900 < left < 1100
    assert float(call(channel, "time_left")) > 1e9


def test_deadline_passes(channel: Any, key: str) -> None:
    error = failure(channel, "wait", key.encode(), timeout=0.2)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert call(channel, "recall", key.encode()) == b"active=False"


def test_deadline_that_has_passed(channel: Any) -> None:
    assert call(channel, "echo", b"x") == b"x"
    error = failure(channel, "echo", b"x", timeout=-1)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_distant_deadline(channel: Any) -> None:
    assert call(channel, "echo", b"x", timeout=1e6) == b"x"


@pytest.mark.parametrize("timeout", [1e10, 9.2e18, 1e300, float("inf"), float("nan")])
def test_deadline_that_cannot_be_written_down(channel: Any, timeout: float) -> None:
    """For grpcio it is in the past."""
    method = channel.unary_unary(path("echo"))
    for invoke in (method, method.with_call, lambda *a, **k: method.future(*a, **k).result()):
        with pytest.raises(grpc.RpcError) as caught:
            invoke(b"x", timeout=timeout)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    stream = channel.unary_stream(path("count"))(b"3", timeout=timeout)
    with pytest.raises(grpc.RpcError):
        list(stream)
    assert stream.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("timeout", [1e10, float("inf")])
def test_patience_without_end_with_a_future(channel: Any, timeout: float) -> None:
    assert channel.unary_unary(path("echo")).future(b"x").result(timeout) == b"x"


def test_handler_cancels(channel: Any) -> None:
    assert failure(channel, "cancel_itself").code() is grpc.StatusCode.CANCELLED


def test_callback_at_the_end(channel: Any, key: str) -> None:
    assert call(channel, "callback", key.encode()) == key.encode()
    assert call(channel, "recall", key.encode()) == b"called"


def test_options_of_a_call_are_accepted(channel: Any) -> None:
    response = call(
        channel,
        "echo",
        b"x",
        timeout=LIMIT_SECONDS,
        wait_for_ready=True,
        compression=grpc.Compression.Gzip,
    )
    assert response == b"x"


def test_registered_method(channel: Any) -> None:
    method = channel.unary_unary(path("echo"), _registered_method=True)
    assert method(b"x") == b"x"


def test_nothing_is_logged_by_calls_that_go_well(
    channel: Any, caplog: pytest.LogCaptureFixture
) -> None:
    call(channel, "echo", b"x")
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        call(channel, "echo", b"x")
    assert caplog.records == []
