# SPDX-License-Identifier: Apache-2.0
"""Stubs and servicers that protoc generated, unchanged, over every pairing."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from tests.rpc import generated


@pytest.fixture
def arithmetic(channel: Any) -> tuple[Any, Any]:
    messages, grpc_code = generated.modules()
    return messages.Number, grpc_code.ArithmeticStub(channel)


def test_every_arity(arithmetic: tuple[Any, Any]) -> None:
    number, stub = arithmetic
    assert stub.Double(number(value=21)).value == 42
    assert [n.value for n in stub.Count(number(value=4))] == [0, 1, 2, 3]
    assert stub.Sum(number(value=n) for n in range(5)).value == 10
    assert [n.value for n in stub.RunningSum(number(value=n) for n in range(4))] == [0, 1, 3, 6]


def test_future(arithmetic: tuple[Any, Any]) -> None:
    number, stub = arithmetic
    assert stub.Double.future(number(value=4)).result(20).value == 8


def test_wrong_message(arithmetic: tuple[Any, Any]) -> None:
    _, stub = arithmetic
    with pytest.raises(grpc.RpcError) as caught:
        stub.Double("no message")
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INTERNAL
