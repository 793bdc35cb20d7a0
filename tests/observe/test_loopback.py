# SPDX-License-Identifier: Apache-2.0
"""A process's transfer to itself: what it finds out."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tensorwire.observe import loopback
from tensorwire.transports import why_not


@pytest.mark.parametrize("transport", ["shm", "tcp", "grpc"])
def test_every_byte_comes_back(transport: Any) -> None:
    assert loopback.transfer(transport, 20.0) == sum(loopback.SIZES)


@pytest.mark.skipif(why_not("verbs") is not None, reason="this host has no RDMA device")
def test_by_rdma() -> None:
    assert loopback.transfer("verbs", 60.0) == sum(loopback.SIZES)


@pytest.mark.skipif(why_not("verbs") is None, reason="this host has an RDMA device")
def test_without_a_device_the_reason_is_told() -> None:
    with pytest.raises(loopback.LoopbackError) as caught:
        loopback.transfer("verbs", 5.0)
    assert str(why_not("verbs")) in str(caught.value)


def test_a_setting_that_forbids_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_FORBID", "tcp")
    with pytest.raises(loopback.LoopbackError, match="TENSORWIRE_FORBID=tcp leave no transport"):
        loopback.transfer("tcp", 20.0)


def test_a_changed_byte_is_found() -> None:
    with pytest.raises(loopback.LoopbackError, match="1000 bytes came back changed"):
        loopback.transfer("tcp", 20.0, lambda request, _: request[:-1] + b"?")


def test_an_error_is_told() -> None:
    def fail(_: bytes, context: Any) -> None:
        context.abort(grpc.StatusCode.DATA_LOSS, "gone")

    with pytest.raises(loopback.LoopbackError, match="DATA_LOSS: gone"):
        loopback.transfer("tcp", 20.0, fail)
