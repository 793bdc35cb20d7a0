# SPDX-License-Identifier: Apache-2.0
"""The same calls over grpcio and over ours, made up by hypothesis: what a program sees of them is
the same."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.rpc.pairings import DATA_PLANE, PAIRINGS, Pairing
from tests.rpc.service import LIMIT_SECONDS, path

STOCK, OURS = PAIRINGS[0], (*DATA_PLANE, PAIRINGS[3])

ARITIES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def pairs_of(*keys: str) -> st.SearchStrategy[list[tuple[str, str]]]:
    return st.lists(
        st.tuples(st.sampled_from(keys), st.sampled_from(["", "v", "two words", "\u00e4"]))
        | st.tuples(st.just("raw-bin"), st.sampled_from(["", "\0\u00ff"])),
        max_size=3,
    )


# Some of those that gRPC keeps for itself end the process of a server that gives them.
PAIRS = pairs_of("a", "x-long-key", "k.e_y-1", "UPPER", "content-type")
SENT = pairs_of("a", "k.e_y-1", "UPPER", "user-agent", "te", "grpc-timeout")
CODES = st.sampled_from([code.name for code in grpc.StatusCode])

PROGRAMS = st.fixed_dictionaries(
    {
        "messages": st.integers(0, 3),
        "end": st.sampled_from(
            ["return", "raise", "abort", "abort_with_status", "none", "cancel", "serializer"]
        ),
        "abort": st.tuples(CODES, st.sampled_from(["", "why", "\u00fcber"])),
    },
    optional={
        "initial": PAIRS,
        "trailing": PAIRS,
        "code": CODES,
        "details": st.sampled_from(["", "so", "\u00fcber"]),
    },
)
SHAPES = st.fixed_dictionaries(
    {
        "arity": st.sampled_from(ARITIES),
        "way": st.sampled_from(["call", "with_call", "future"]),
        "requests": st.integers(0, 3),
        "bad_request": st.sampled_from(["", "raise", "serializer"]),
        "metadata": st.none() | SENT,
        "timeout": st.sampled_from([None, 1000, -1, 1e10]),
        "deserializer": st.booleans(),
        "cancel_after": st.none() | st.integers(0, 2),
    }
)


def written(given: list[Any] | None) -> Any:
    if given is None:
        return None
    return tuple((k, v.encode("latin-1") if k.endswith("-bin") else v) for k, v in given)


def serialize(request: bytes) -> bytes:
    if request == b"bad":
        raise ValueError("a serializer that fails")
    return request


def deserialize(response: bytes) -> Any:
    if response == b"1":
        raise ValueError("a deserializer that fails")
    return response.decode()


def requests(program: bytes, shape: dict[str, Any]) -> Iterator[bytes]:
    yield program
    for _ in range(shape["requests"]):
        yield b"more"
    if shape["bad_request"] == "raise":
        raise ValueError("an iterator that fails")
    if shape["bad_request"] == "serializer":
        yield b"bad"


def about(call: Any) -> dict[str, Any]:
    """An ended call, or an error that is one."""
    details = call.details()
    return {
        "code": call.code(),
        # Ours says what is wrong with metadata; grpcio says only that it is.
        "details": "Invalid metadata" if details.startswith("Invalid metadata") else details,
        "initial": tuple(call.initial_metadata()),
        "trailing": tuple(call.trailing_metadata()),
    }


def about_future(call: Any) -> dict[str, Any]:
    seen: list[Any] = []
    try:
        outcome: Any = type(call.exception(LIMIT_SECONDS)) is type(None)
        has_traceback = call.traceback() is not None
    except grpc.FutureCancelledError:
        outcome, has_traceback = "cancelled", None
    call.add_done_callback(seen.append)
    return {
        **about(call),
        "outcome": outcome,
        "traceback": has_traceback,
        "state": (call.done(), call.running(), call.cancelled(), call.is_active()),
        "called": seen == [call],
        "cancel": call.cancel(),
    }


def observe(channel: Any, program: dict[str, Any], shape: dict[str, Any]) -> Any:
    arity = shape["arity"]
    method = getattr(channel, arity)(
        path(f"play_{arity}"), serialize, deserialize if shape["deserializer"] else None
    )
    text = json.dumps(program).encode()
    if arity.startswith("unary"):
        request: Any = b"bad" if shape["bad_request"] == "serializer" else text
    else:
        request = requests(text, shape)
    options = {"timeout": shape["timeout"], "metadata": written(shape["metadata"])}
    try:
        if arity.endswith("stream"):
            return observe_stream(method(request, **options), shape["cancel_after"])
        if shape["way"] == "future":
            return about_future(method.future(request, **options))
        if shape["way"] == "with_call":
            response, call = method.with_call(request, **options)
            return response, call.result(), about_future(call)
        return method(request, **options)
    except grpc.RpcError as error:
        return "raised", about(error), isinstance(error, grpc._channel._InactiveRpcError)


def observe_stream(stream: Any, cancel_after: int | None) -> Any:
    messages: list[Any] = []
    cancelled = None
    raised = None
    with contextlib.suppress(StopIteration):
        try:
            while True:
                if len(messages) == cancel_after and cancelled is None:
                    cancelled = stream.cancel()
                messages.append(next(stream))
        except grpc.RpcError as error:
            known: Any = error
            raised = known.code(), isinstance(error, grpc._channel._MultiThreadedRendezvous)
    return messages, cancelled, raised, about_future(stream)


@pytest.fixture(scope="module")
def channels(processes: dict[str, str]) -> Iterator[dict[Pairing, Any]]:
    with contextlib.ExitStack() as stack:
        yield {
            pairing: stack.enter_context(pairing.channel(processes[pairing.server]))
            for pairing in (STOCK, *OURS)
        }


def depends_on_luck(program: dict[str, Any], shape: dict[str, Any]) -> bool:
    """What grpcio answers now so, now otherwise: who is first, the server or the client's own end?
    Besides, grpcio sends a response along with an error, and deserializes it."""
    request, response = shape["arity"].split("_")
    refused = response == "stream" and program["messages"] > 1
    return (
        (request == "stream" and shape["bad_request"] != "")
        or shape["cancel_after"] in (0, program["messages"])
        or (shape["deserializer"] and (refused or program.get("code", "OK") != "OK"))
    )


@given(program=PROGRAMS, shape=SHAPES)
@settings(
    max_examples=500,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_calls(
    channels: dict[Pairing, Any], program: dict[str, Any], shape: dict[str, Any]
) -> None:
    if depends_on_luck(program, shape):
        return
    expected = observe(channels[STOCK], program, shape)
    for pairing in OURS:
        assert observe(channels[pairing], program, shape) == expected, str(pairing)
