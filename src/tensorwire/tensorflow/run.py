# SPDX-License-Identifier: Apache-2.0
"""``tensorwire run``: a TensorFlow program as it is, whose servers get tensorwire.

``environment`` is what the program is started with. It makes every Python among its processes
run ``site/sitecustomize.py``, which calls ``begin`` there once TensorFlow has been imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tensorwire.tensorflow import enable
from tensorwire.tensorflow.errors import PluginError

SITE = Path(__file__).resolve().parent / "site"
OPTIONS = "TENSORWIRE_RUN"
"""A comma list out of ``stats`` and ``fallback``, for the program's processes."""


def environment(*, stats: bool, fallback: bool) -> dict[str, str]:
    """What to add to the environment of a program.

    stats: each process prints at its end what went which way. fallback: where the plugin cannot be
    had, the program goes on with stock gRPC instead of ending with the reason.
    """
    options = [name for name, on in (("stats", stats), ("fallback", fallback)) if on]
    folders = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(folders), OPTIONS: ",".join(options)}


def begin() -> str | None:
    """Enables tensorwire in a process of the program. Returns why the program has to end."""
    options = os.environ.get(OPTIONS, "").split(",")
    try:
        engine = enable(replace_grpc=True)
    except PluginError as error:
        if "fallback" not in options:
            return f"{error} (--fallback would go on with stock gRPC)"
        print(f"tensorwire: going on with stock gRPC: {error}", file=sys.stderr, flush=True)
        return None
    except ValueError as error:
        return str(error)
    if "stats" in options:
        from tensorwire.tensorflow import report

        report.at_end(engine)
    return None
