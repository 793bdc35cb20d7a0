# SPDX-License-Identifier: Apache-2.0
"""What ``help()`` and editors say of a call's arguments: as stock gRPC declares them."""

from __future__ import annotations

import inspect
from typing import Any

import grpc
import pytest

from tensorwire.rpc.client import multicallable

CALLABLES: list[tuple[type, Any]] = [
    (multicallable.UnaryUnary, grpc.UnaryUnaryMultiCallable),
    (multicallable.UnaryStream, grpc.UnaryStreamMultiCallable),
    (multicallable.StreamUnary, grpc.StreamUnaryMultiCallable),
    (multicallable.StreamStream, grpc.StreamStreamMultiCallable),
]

METHODS = [
    pytest.param(getattr(ours, name), getattr(stock, name), id=f"{ours.__name__}.{name}")
    for ours, stock in CALLABLES
    for name in ("__call__", "with_call", "future")
    if hasattr(stock, name)
]


def declared(method: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default) for each in parameters]


def test_no_method_of_stock_is_left_out() -> None:
    assert len(METHODS) == 8


@pytest.mark.parametrize(("ours", "stock"), METHODS)
def test_arguments_are_those_of_stock(ours: Any, stock: Any) -> None:
    assert declared(ours) == declared(stock)
    assert [name for name, *_ in declared(ours)][2:] == list(multicallable.CallOptions._fields)


def test_names_of_a_channel_are_those_of_stock() -> None:
    for ours, _ in CALLABLES:
        arity = ours.arity  # type: ignore[attr-defined]
        stock = declared(getattr(grpc.Channel, arity))
        assert declared(getattr(multicallable.Calling, arity)) == stock
