# SPDX-License-Identifier: Apache-2.0
"""Python runs this first in every program under ``tensorwire run``, because its folder leads
PYTHONPATH: it waits until TensorFlow has been imported and then enables tensorwire.

Only the standard library is used until then: the program may start Pythons that have neither.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Waiting(MetaPathFinder):
    """A finder that finds what the others find, and learns when ``tensorflow`` has been executed.

    Nothing of it can be seen afterwards: the loader is TensorFlow's own.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            begin()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def begin() -> None:
    why: str | None
    try:
        from tensorwire.tensorflow import run
    except ImportError as error:
        why = f"cannot be imported by {sys.executable}, which runs the program: {error}"
    else:
        why = run.begin()
    if why:
        end(why)


def end(why: str) -> None:
    """Ends the program, whichever thread has imported TensorFlow."""
    print(f"tensorwire: {why}", file=sys.stderr, flush=True)
    if threading.current_thread() is threading.main_thread():
        sys.exit(1)
    # In another thread SystemExit would end that thread, and the program would go on without it.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(1)


def chain() -> None:
    """Runs the sitecustomize that this one stands in front of."""
    own = os.path.dirname(os.path.abspath(__file__))
    others = [folder for folder in sys.path if os.path.abspath(folder) != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, Waiting())
chain()
