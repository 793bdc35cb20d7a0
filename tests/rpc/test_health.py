# SPDX-License-Identifier: Apache-2.0
"""grpcio's own health service on our servers: it uses pools and callbacks of its own."""

from __future__ import annotations

from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from tests.rpc.pairings import Pairing, local

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_check_and_watch(pairing: Pairing) -> None:
    servicer = health.HealthServicer()
    add = health_pb2_grpc.add_HealthServicer_to_server
    with (
        local(pairing.server, prepare=lambda server: add(servicer, server)) as server,
        pairing.channel(server.target) as channel,
    ):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        assert stub.Check(request).status == SERVING
        watch = stub.Watch(request)
        assert next(watch).status == SERVING
        servicer.set("", NOT_SERVING)
        assert next(watch).status == NOT_SERVING
        watch.cancel()
        assert stub.Check(request).status == NOT_SERVING
