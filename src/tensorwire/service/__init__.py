# SPDX-License-Identifier: Apache-2.0
"""Typed services without .proto files: a class's public methods as remote calls with tensors.

``define`` marks a class, ``add_to_server`` serves an instance of it on any ``grpc.Server``, and
``client`` is a proxy with the same methods over any ``grpc.Channel``, of tensorwire or stock.

A call's request is the dict of its arguments by name, in the format of ``tensorwire.tensors``. A
parameter annotated as an iterator is streamed: its items follow as messages of their own.
"""

from tensorwire.service.client import Future, client, future, with_options
from tensorwire.service.description import define
from tensorwire.service.server import ServiceError, add_to_server, context

__all__ = [
    "Future",
    "ServiceError",
    "add_to_server",
    "client",
    "context",
    "define",
    "future",
    "with_options",
]
