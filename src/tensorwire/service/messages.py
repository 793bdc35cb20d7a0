# SPDX-License-Identifier: Apache-2.0
"""How objects become the messages of a channel or server, which is tensorwire's or stock gRPC's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tensorwire import rpc, tensors
from tensorwire.rpc.client.multicallable import Calling
from tensorwire.rpc.instrumentation import bare


class _AsReceived:
    """A deserializer that leaves decoding to the caller; tensorwire gives it the segments."""

    __tensorwire_segments__ = True

    def __call__(self, message: Any) -> Any:
        return message


as_received: Final = _AsReceived()


def as_encoded(message: Any) -> Any:
    """A serializer for messages that are encoded already."""
    return message


def encoder_for(transport: object) -> Callable[[object], Any]:
    """Encodes into segments for a channel, peer or server of tensorwire, whatever interceptors are
    around it, into joined bytes for others."""
    if isinstance(bare(transport), (Calling, rpc.Server)):
        return tensors.dumps
    return lambda obj: tensors.join(tensors.dumps(obj))
