# SPDX-License-Identifier: Apache-2.0
"""The ``tensorwire`` command: a file for each command, and what they share.

``app``, with all that it imports, is imported at first use.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorwire.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    from tensorwire.cli import root

    try:
        answered = root.answered(sys.argv[0], sys.argv[1:], os.environ)
    except OSError:
        from tensorwire import signals

        with signals.ending():
            raise
    if not answered:
        from tensorwire.cli.commands import app

        app()


def __getattr__(name: str) -> Any:
    if name == "app":
        from tensorwire.cli.commands import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
