# SPDX-License-Identifier: Apache-2.0
"""Calls that block a running event loop are told, once; others are not."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest
from tests.rpc.pairings import local
from tests.rpc.service import LIMIT_SECONDS, path

import tensorwire
from tensorwire import service


@pytest.fixture(params=["tcp", "grpc"])
def channel(request: pytest.FixtureRequest) -> Iterator[Any]:
    with (
        local("tensorwire") as server,
        tensorwire.insecure_channel(server.target, transport=request.param) as channel,
    ):
        yield channel


def told(do: Callable[[], object], *, in_loop: bool = True) -> list[warnings.WarningMessage]:
    """The warnings of ``do``, run by a coroutine or as it is."""

    async def coroutine() -> None:
        do()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if in_loop:
            asyncio.run(coroutine())
        else:
            do()
    return [each for each in found if "asyncio event loop" in str(each.message)]


def test_once_for_a_method_at_the_place_of_its_call(channel: Any) -> None:
    echo = channel.unary_unary(path("echo"))
    length = channel.unary_unary(path("length"))
    (first,) = told(lambda: [echo(b"x"), echo(b"x"), echo.with_call(b"x")])
    assert first.category is RuntimeWarning
    assert first.filename == __file__
    assert str(first.message).startswith(f"a call of {path('echo')} blocks the asyncio event loop")
    assert "asyncio.to_thread" in str(first.message)
    assert told(lambda: echo(b"x")) == []
    assert len(told(lambda: length.with_call(b"x"))) == 1


def test_a_stream_of_requests(channel: Any) -> None:
    total = channel.stream_unary(path("total"))
    assert len(told(lambda: total(iter([b"1"])))) == 1


def test_what_waits_for_a_call_in_progress() -> None:
    with (
        local("tensorwire") as server,
        tensorwire.insecure_channel(server.target, transport="tcp") as channel,
    ):
        count = channel.unary_stream(path("count"))
        assert len(told(lambda: list(count(b"3")))) == 1
        begun: Any = channel.unary_unary(path("pass_gate")).future(b"key", timeout=1000)

        def wait(seconds: float) -> None:
            with pytest.raises(grpc.FutureTimeoutError):
                begun.result(seconds)

        assert len(told(lambda: wait(0.01))) == 1
        assert told(lambda: wait(0)) == []
        begun.cancel()
        ended: Any = channel.unary_unary(path("echo")).future(b"x")
        ended.result(LIMIT_SECONDS)
        assert told(ended.result) == []


def test_what_does_not_block_is_not_told(channel: Any) -> None:
    echo = channel.unary_unary(path("echo"))
    assert told(lambda: echo(b"x"), in_loop=False) == []

    async def well() -> list[bytes]:
        loop = asyncio.get_running_loop()
        replied = loop.create_future()
        call = echo.future(b"y")
        call.add_done_callback(
            lambda ended: loop.call_soon_threadsafe(replied.set_result, ended.result())
        )
        return [await asyncio.to_thread(echo, b"x"), await replied]

    replies: list[bytes] = []
    assert told(lambda: replies.extend(asyncio.run(well())), in_loop=False) == []
    assert replies == [b"x", b"y"]


def test_it_can_be_silenced_and_made_an_error(channel: Any) -> None:
    echo = channel.unary_unary(path("echo"))

    async def call() -> bytes:
        reply: bytes = echo(b"x")
        return reply

    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".* blocks the asyncio event loop", RuntimeWarning)
        for _ in range(2):
            with pytest.raises(RuntimeWarning, match="to_thread"):
                asyncio.run(call())
        warnings.filterwarnings("ignore", ".* blocks the asyncio event loop", RuntimeWarning)
        assert asyncio.run(call()) == b"x"


def test_the_cells_of_a_notebook_may_block(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    echo = channel.unary_unary(path("echo"))
    assert told(lambda: echo(b"x")) == []


@service.define
class Doubler:
    def double(self, x: np.ndarray) -> np.ndarray:
        return x * 2


def test_a_typed_client_is_told_where_it_is_called() -> None:
    with (
        local("tensorwire", prepare=lambda server: service.add_to_server(Doubler(), server)) as at,
        tensorwire.insecure_channel(at.target, transport="tcp") as channel,
    ):
        client = service.client(Doubler, channel)
        (found,) = told(lambda: client.double(np.ones(2)))
        assert found.filename == __file__
        assert "Doubler/double" in str(found.message)


def test_a_call_that_cannot_begin_fails_as_any_other(channel: Any) -> None:
    lengths = channel.stream_unary(path("length"))
    lengths(iter([b"x"]))
    with pytest.raises(grpc.RpcError):
        lengths.with_call(iter([b"x"]), metadata=[("x y", "v")])
