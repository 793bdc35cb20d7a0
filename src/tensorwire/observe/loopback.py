# SPDX-License-Identifier: Apache-2.0
"""A transfer from this process to itself, for ``tensorwire doctor``: whether a transport really
moves bytes here, and the right ones."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from tensorwire.rpc.choice import Transport

METHOD: Final = "/tensorwire.Loopback/Echo"
SIZES: Final = (1000, 1 << 20, 9 << 20)
"""In one send; by one read of the receiver; by several, with a remainder."""

_OPTIONS: Final = (("grpc.max_receive_message_length", -1),)


class LoopbackError(Exception):
    """Nothing came back, or not what was sent; the text says why."""


def transfer(
    transport: Transport,
    timeout: float,
    echo: Callable[[bytes, Any], Any] = lambda request, _: request,
) -> int:
    """Sends bytes there and back over a link of its own; returns how many went each way.

    timeout: seconds for each call. echo: what answers them. Raises LoopbackError.
    """
    import grpc

    import tensorwire

    pool = ThreadPoolExecutor(1)
    try:
        server = tensorwire.server(pool, options=_OPTIONS, transport=transport)
        server.add_generic_rpc_handlers((_serving(echo),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            with tensorwire.insecure_channel(address, transport=transport) as channel:
                call: Any = channel.unary_unary(METHOD)
                for size in SIZES:
                    sent = np.random.default_rng(size).bytes(size)
                    if bytes(call(sent, timeout=timeout)) != sent:
                        raise LoopbackError(f"{size} bytes came back changed")
        finally:
            server.stop(None)
    except grpc.RpcError as error:
        raise LoopbackError(f"{error.code().name}: {error.details()}") from None
    except (RuntimeError, ValueError) as error:
        raise LoopbackError(str(error)) from None
    finally:
        pool.shutdown()
    return sum(SIZES)


def _serving(echo: Callable[[bytes, Any], Any]) -> Any:
    import grpc

    service, _, method = METHOD[1:].partition("/")
    handler: Any = grpc.unary_unary_rpc_method_handler(echo)
    return grpc.method_handlers_generic_handler(service, {method: handler})
