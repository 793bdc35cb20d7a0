# SPDX-License-Identifier: Apache-2.0
"""Adaptive tensor communication: gRPC calls over shared memory and TCP, tensors without copies.

Names are imported at first use, so that ``import tensorwire`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorwire import protobuf, rpc, service, tensors, trace, weights
    from tensorwire._core import __version__
    from tensorwire.arrays import (
        ArenaFullError,
        arena_stats,
        empty,
        empty_like,
        full,
        publish,
        zeros,
    )
    from tensorwire.environment import SettingError
    from tensorwire.rpc import (
        CallError,
        Channel,
        Path,
        Peer,
        Server,
        insecure_channel,
        peer_of,
        secure_channel,
        server,
    )

__all__ = [
    "ArenaFullError",
    "CallError",
    "Channel",
    "Path",
    "Peer",
    "Server",
    "SettingError",
    "__version__",
    "arena_stats",
    "empty",
    "empty_like",
    "full",
    "insecure_channel",
    "peer_of",
    "protobuf",
    "publish",
    "rpc",
    "secure_channel",
    "server",
    "service",
    "tensors",
    "trace",
    "weights",
    "zeros",
]

_HOMES = {
    "tensorwire._core": ("__version__",),
    "tensorwire.arrays": (
        "ArenaFullError",
        "arena_stats",
        "empty",
        "empty_like",
        "full",
        "publish",
        "zeros",
    ),
    "tensorwire.environment": ("SettingError",),
    "tensorwire.rpc": (
        "CallError",
        "Channel",
        "Path",
        "Peer",
        "Server",
        "insecure_channel",
        "peer_of",
        "secure_channel",
        "server",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("protobuf", "rpc", "service", "tensors", "trace", "weights")


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"tensorwire.{name}")
    else:
        raise AttributeError(f"module 'tensorwire' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
