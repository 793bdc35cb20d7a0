# SPDX-License-Identifier: Apache-2.0
"""A method of every server that takes any message and answers with an empty one, so that
``tensorwire doctor`` can time the way to it. The server's interceptors see its calls, too."""

from __future__ import annotations

from typing import Any, Final

import grpc

from tensorwire.rpc.payload import segments

_SERVICE: Final = "tensorwire.v1.Probe"
METHOD: Final = f"/{_SERVICE}/Take"


def handler() -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        _SERVICE,
        {"Take": grpc.unary_unary_rpc_method_handler(_take, request_deserializer=_untouched)},
    )


@segments
def _untouched(buffers: Any) -> Any:
    return buffers


def _take(request: object, context: grpc.ServicerContext) -> bytes:
    return b""
