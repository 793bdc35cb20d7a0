# SPDX-License-Identifier: Apache-2.0
"""A server in a process of its own: ``python -m tests.rpc.peer '{"kind": "tensorwire"}'``.

Writes its port to stdout and stops when stdin ends.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from tests.rpc.service import Service


def make_server(kind: str, pool: ThreadPoolExecutor, **options: Any) -> grpc.Server:
    if kind == "stock":
        return grpc.server(pool, **options)
    import tensorwire

    return tensorwire.server(pool, **options)


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    order = json.loads(sys.argv[1])
    sys.path[:0] = order.get("generated", [])
    pool = ThreadPoolExecutor(order.get("workers", 16))
    server = make_server(order["kind"], pool)
    server.add_generic_rpc_handlers((Service().handlers(),))
    if "generated" in order:
        from tests.rpc import generated

        generated.add_to_server(server)
    port = server.add_insecure_port(order.get("address", "127.0.0.1:0"))
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(None)
    pool.shutdown()


if __name__ == "__main__":
    main()
