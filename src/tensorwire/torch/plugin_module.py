# SPDX-License-Identifier: Apache-2.0
"""The plugin, loaded into this process."""

from __future__ import annotations

import atexit
import importlib.util
import threading
from importlib.machinery import ExtensionFileLoader
from typing import Any

from tensorwire import _core
from tensorwire.plugins import BuildError
from tensorwire.torch import build

_guard = threading.Lock()
_module: Any = None


def load() -> Any:
    """Raises UnsupportedError and BuildError."""
    global _module
    with _guard:
        if _module is None:
            _module = _loaded()
        return _module


def _loaded() -> Any:
    path = build.plugin(build.installed())
    loader = ExtensionFileLoader(build.MODULE, str(path))
    spec = importlib.util.spec_from_loader(build.MODULE, loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise BuildError(
            f"Python cannot load the plugin: {error}; remove {path.parent} and try again"
        ) from None
    module.start(_core.function_table())
    atexit.register(module.shut_down)
    return module
