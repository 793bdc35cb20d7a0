# SPDX-License-Identifier: Apache-2.0
"""Generated protobuf messages whose large ``bytes`` fields travel without protobuf's copies.

``stub`` and ``add_to_server`` wrap what protoc generated. ``Attached`` is a message together with
memory that stands in for some of its ``bytes`` fields. What travels is the plain message in
protobuf's own format: stock gRPC may be at the other end, in any language.
"""

from __future__ import annotations

try:
    import google.protobuf  # noqa: F401
except ImportError as error:
    raise ImportError(
        "tensorwire.protobuf needs the package protobuf: pip install 'tensorwire[protobuf]'"
    ) from error

from tensorwire.protobuf.attached import Attached
from tensorwire.protobuf.codec import add_to_server, stub
from tensorwire.protobuf.wire import LARGE

__all__ = ["LARGE", "Attached", "add_to_server", "stub"]
