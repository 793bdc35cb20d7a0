# SPDX-License-Identifier: Apache-2.0
"""TensorFlow clusters whose tensors travel by tensorwire.

``enable()`` teaches TensorFlow the server protocol ``grpc+tensorwire``: its servers go on talking
gRPC for control, and to any stock server; tensors between two of them go by shared memory, RDMA or
TCP. ``tensorwire run`` does it for programs as they are. Nothing here imports TensorFlow before
``enable`` is called.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from tensorwire.tensorflow.errors import BuildError, PluginError, UnsupportedError

__all__ = [
    "PROTOCOL",
    "STOCK_PROTOCOL",
    "BuildError",
    "Engine",
    "PluginError",
    "UnsupportedError",
    "enable",
    "enabled",
    "stats",
]

PROTOCOL = "grpc+tensorwire"
STOCK_PROTOCOL = "grpc"

ERROR_ROOM = 1024
INVALID_ARGUMENT = 3
"""Of the plugin: an environment variable has a value that is not permitted."""
_VISIT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64)


@dataclass(frozen=True)
class Engine:
    """What ``enable`` has arranged.

    protocol: for ``tf.distribute.Server(..., protocol=...)`` and
        ``tf.config.experimental_connect_to_cluster(..., protocol=...)``.
    tensorflow: its version. plugin: the library that was loaded; None when TF_RDMA_ENABLED=false
        keeps the stock engine.
    """

    protocol: str
    tensorflow: str
    plugin: Path | None


_guard = threading.RLock()
_engine: Engine | None = None
_library: ctypes.CDLL | None = None


def enable(*, replace_grpc: bool = False) -> Engine:
    """Makes the protocol ``grpc+tensorwire`` known to TensorFlow in this process.

    Call it before the program makes a server or runs an operation. The first call on a machine
    compiles the plugin, which takes about a minute; later ones load it. Thread-safe; calling it
    again is cheap and does no harm.

    replace_grpc: servers that ask for ``grpc``, the default of every TensorFlow program and
        strategy, get ``grpc+tensorwire`` from now on. Session targets stay ``grpc://``.

    With TF_RDMA_ENABLED=false nothing is built or loaded, and servers that ask for
    ``grpc+tensorwire`` get stock ``grpc``.

    Raises UnsupportedError, BuildError or, for an environment variable with a value that is not
    permitted, SettingError.
    """
    from tensorwire.tensorflow import build, protocol, settings

    global _engine
    if _engine is None:
        wanted = settings.wanted()
        # Not under the lock: under ``tensorwire run`` the thread that imports TensorFlow comes here
        # before others that wait for its import.
        tensorflow = build.installed()
        with _guard:
            if _engine is None and wanted:
                plugin = build.plugin(tensorflow)
                _load(plugin, os.RTLD_NOW | _own_scope(tensorflow.version))
                _engine = Engine(PROTOCOL, tensorflow.version, plugin)
            elif _engine is None:
                protocol.replace(PROTOCOL, STOCK_PROTOCOL)
                _engine = Engine(STOCK_PROTOCOL, tensorflow.version, None)
    with _guard:
        if replace_grpc and _engine.plugin is not None:
            protocol.replace(STOCK_PROTOCOL, PROTOCOL)
        return _engine


def enabled() -> bool:
    """Whether ``enable`` has loaded the plugin in this process."""
    return _library is not None


def stats() -> dict[str, int]:
    """What went which way in this process since ``enable``: counts of tensors and of their bytes,
    also of those that took the stock path, by reason. Empty as long as the plugin is not loaded."""
    return {name: value for name, _, value in counters()}


def counters() -> list[tuple[str, str | None, int]]:
    """Name, label and value of what ``stats`` has, in the order in which people are told of them;
    those without a label are not."""
    found: list[tuple[str, str | None, int]] = []

    def visit(_context: object, name: bytes, label: bytes | None, value: int) -> None:
        found.append((name.decode(), None if label is None else label.decode(), value))

    if _library is not None:
        _library.tensorwire_tensorflow_stats(_VISIT(visit), None)
    return found


def _own_scope(version: str) -> int:
    """TensorFlow 2.19 loads its two libraries into the global scope, where the one comes first
    whose registry of servers nobody reads; the plugin names the other one first."""
    return os.RTLD_DEEPBIND if version.startswith("2.19.") else 0


def _load(plugin: Path, mode: int) -> None:
    global _library
    import tensorflow as tf
    from tensorwire import _core, environment
    from tensorwire.observe import audit

    mend = f"remove {plugin.parent} and try again"
    try:
        library = ctypes.CDLL(str(plugin), mode)
        tf.load_library(str(plugin))
    except (tf.errors.OpError, OSError) as error:
        raise BuildError(f"TensorFlow cannot load the plugin: {error}; {mend}") from None
    library.tensorwire_tensorflow_abi.restype = ctypes.c_uint32
    start = library.tensorwire_tensorflow_start
    start.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
    library.tensorwire_tensorflow_stats.argtypes = (_VISIT, ctypes.c_void_p)
    library.tensorwire_tensorflow_stats.restype = None

    table = _core.function_table()
    built_for = library.tensorwire_tensorflow_abi()
    has = ctypes.c_uint32.from_address(table).value
    if built_for != has:
        raise BuildError(
            f"the plugin was built for version {built_for} of the core's function table, but "
            f"tensorwire {_core.__version__} has version {has}: reinstall tensorwire"
        )
    why = ctypes.create_string_buffer(ERROR_ROOM)
    code = start(table, why, ERROR_ROOM)
    if code == INVALID_ARGUMENT:
        raise environment.SettingError(why.value.decode(errors="replace"))
    if code != 0:
        raise PluginError(f"the plugin does not start: {why.value.decode(errors='replace')}")
    _library = library
    audit.follow()
