# SPDX-License-Identifier: Apache-2.0
"""What programs do with errors and ended calls beside reading them."""

from __future__ import annotations

import copy
import logging
import multiprocessing
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc import _channel as stock  # private, and yet what programs catch
from tests.rpc.pairings import DATA_PLANE, Pairing, local
from tests.rpc.service import LIMIT_SECONDS, path

import tensorwire
from tensorwire.rpc import status

ABORT: dict[str, Any] = {"metadata": (("code", "DATA_LOSS"),)}


def failure(channel: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(path("abort"))(b"why", **ABORT)
    return caught.value


def assert_same(error: Any, other: Any) -> None:
    assert type(other) is type(error)
    assert other.code() is error.code() is grpc.StatusCode.DATA_LOSS
    assert other.details() == error.details() == "why"
    assert other.initial_metadata() == error.initial_metadata()
    assert other.trailing_metadata() == error.trailing_metadata()
    assert other.cancelled() is error.cancelled()


def test_copied(channel: Any) -> None:
    error = failure(channel)
    assert ("why", "aborted") in error.trailing_metadata()
    assert_same(error, copy.copy(error))


def fail_in_a_worker(target: str, begun: bool) -> None:
    with tensorwire.insecure_channel(target, transport="shm") as channel:
        method: Any = channel.unary_unary(path("abort"))
        raise method.future(b"why", **ABORT).exception() if begun else failure(channel)


def test_error_of_a_pool_of_processes(processes: dict[str, str]) -> None:
    """It comes out of its process whole, where the pool waits for what it cannot read for ever."""
    with (
        multiprocessing.get_context("spawn").Pool(1) as pool,
        tensorwire.insecure_channel(processes["tensorwire"]) as channel,
    ):
        for begun in (False, True):
            work = pool.apply_async(fail_in_a_worker, (processes["tensorwire"], begun))
            with pytest.raises(status.CallError) as caught:
                work.get(LIMIT_SECONDS)
            same: Any = channel.unary_unary(path("abort")).future(b"why", **ABORT).exception()
            assert_same(same if begun else failure(channel), caught.value)


def test_except_clauses_for_grpcio(channel: Any) -> None:
    with pytest.raises(stock._InactiveRpcError):
        channel.unary_unary(path("abort"))(b"why", **ABORT)
    with pytest.raises(stock._InactiveRpcError):
        channel.unary_unary(path("abort")).with_call(b"why", **ABORT)
    with pytest.raises(stock._MultiThreadedRendezvous):
        channel.unary_unary(path("abort")).future(b"why", **ABORT).result(LIMIT_SECONDS)
    with pytest.raises(stock._MultiThreadedRendezvous):
        list(channel.unary_stream(path("count_and_abort"))(b"1"))
    with pytest.raises(stock._InactiveRpcError):
        channel.stream_unary(path("nowhere"))(iter(()))
    late = channel.unary_unary(path("echo")).future(b"", timeout=-1)
    with pytest.raises(stock._MultiThreadedRendezvous):
        late.result(LIMIT_SECONDS)


def test_call_that_ended_is_a_future(channel: Any) -> None:
    response, ended = channel.unary_unary(path("echo")).with_call(b"x")
    assert response == b"x"
    kinds: tuple[Any, ...] = (grpc.Call, grpc.Future)
    assert all(isinstance(ended, kind) for kind in kinds)
    assert ended.result() == ended.result(timeout=1) == b"x"
    assert ended.exception() is None
    assert ended.traceback() is None
    assert ended.debug_error_string() == ""
    assert (ended.done(), ended.running(), ended.cancelled()) == (True, False, False)
    seen: list[Any] = []
    ended.add_done_callback(seen.append)
    assert seen == [ended]
    assert "StatusCode.OK" in repr(ended)


def test_failed_call_is_a_future(channel: Any) -> None:
    error = failure(channel)
    assert (error.done(), error.running(), error.cancelled()) == (True, False, False)
    assert error.exception() is error
    assert error.traceback() is not None
    assert "DATA_LOSS" in error.debug_error_string() or "why" in error.debug_error_string()
    seen: list[Any] = []
    error.add_done_callback(seen.append)
    assert seen == [error]
    assert not error.cancel()


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
@pytest.mark.parametrize(
    "details", ["of a file \udcff", "\u00e4" * 70_000], ids=["surrogate", "long"]
)
def test_details_that_cannot_travel_as_they_are(
    pairing: Pairing, details: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The code survives, and what there is room for."""
    caplog.set_level(logging.CRITICAL + 1, "tensorwire")  # pytest could not pass them on either

    def fail(request: bytes, context: grpc.ServicerContext) -> bytes:
        raise OSError(details)

    def fail_late(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b""
        raise OSError(details)

    def abort(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, details)

    def set_details(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_code(grpc.StatusCode.NOT_FOUND)
        context.set_details(details)
        return b"not seen"

    made: dict[str, Any] = {
        "fail": grpc.unary_unary_rpc_method_handler(fail),
        "fail_late": grpc.unary_stream_rpc_method_handler(fail_late),
        "abort": grpc.unary_unary_rpc_method_handler(abort),
        "set_details": grpc.unary_unary_rpc_method_handler(set_details),
    }
    unary: Any
    with (
        local(
            pairing.server, handlers=(grpc.method_handlers_generic_handler("test.Own", made),)
        ) as server,
        pairing.channel(server.target) as channel,
    ):
        start = details.replace("\udcff", "?")[:400]
        for name in ("fail", "abort", "set_details"):
            unary = channel.unary_unary(f"/test.Own/{name}").future(b"", timeout=LIMIT_SECONDS)
            code = grpc.StatusCode.UNKNOWN if name == "fail" else grpc.StatusCode.NOT_FOUND
            assert unary.code() is code
            assert start in unary.details()
        stream = channel.unary_stream("/test.Own/fail_late")(b"", timeout=LIMIT_SECONDS)
        with pytest.raises(grpc.RpcError):
            list(stream)
        assert stream.code() is grpc.StatusCode.UNKNOWN
        assert f"Exception iterating responses: {start}" in stream.details()
