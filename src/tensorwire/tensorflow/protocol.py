# SPDX-License-Identifier: Apache-2.0
"""Changes the protocol of servers at the few places where TensorFlow's Python hands the
description of a server to its C++."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tensorwire.tensorflow.errors import UnsupportedError

# Module, function, and the place of the serialised ServerDef among its arguments. Behind them are
# tf.distribute.Server and v1's tf.train.Server; experimental_connect_to_cluster and with it
# ParameterServerStrategy; MultiWorkerMirroredStrategy.
DOORS = (
    ("tensorflow.python.client.pywrap_tf_session", "TF_NewServer", 0),
    ("tensorflow.python.pywrap_tfe", "TFE_ContextSetServerDef", 2),
    ("tensorflow.python.pywrap_tfe", "TFE_ContextSetServerDefWithTimeoutAndRetries", 2),
    ("tensorflow.python.pywrap_tfe", "TFE_ContextUpdateServerDef", 2),
    ("tensorflow.python.pywrap_tfe", "TFE_EnableCollectiveOps", 1),
)
NOT_IN_ALL = {"TFE_ContextSetServerDefWithTimeoutAndRetries"}

_replaced: dict[str, str] = {}


def replace(old: str, new: str) -> None:
    """From now on servers that ask for protocol ``old`` get ``new``."""
    if not _replaced:
        _stand_at_doors()
    _replaced[old] = new


def rewritten(server_def: bytes) -> bytes:
    """A serialised ``ServerDef`` with the protocol that it is to have."""
    from tensorflow.core.protobuf.tensorflow_server_pb2 import ServerDef

    parsed = ServerDef.FromString(server_def)
    if parsed.protocol not in _replaced:
        return server_def
    parsed.protocol = _replaced[parsed.protocol]
    changed: bytes = parsed.SerializeToString()
    return changed


def _stand_at_doors() -> None:
    found = []
    for name, function, place in DOORS:
        module = importlib.import_module(name)
        if hasattr(module, function):
            found.append((module, function, place))
        elif function not in NOT_IN_ALL:
            raise UnsupportedError(
                f"this TensorFlow has no {name}.{function}: its servers cannot be given another "
                "protocol; name the protocol grpc+tensorwire in the program instead"
            )
    for module, function, place in found:
        setattr(module, function, _rewriting(getattr(module, function), place))


def _rewriting(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        changed = rewritten(arguments[place])
        return function(*arguments[:place], changed, *arguments[place + 1 :])

    return call
