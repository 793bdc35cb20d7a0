# SPDX-License-Identifier: Apache-2.0
"""The logger of this package. What peers wrote into an error cannot end a line of the log."""

from __future__ import annotations

import logging
from typing import Final


def plain(text: str) -> str:
    """``text`` on one line: what is not printable as ``\\x1b``, ``\\n``, ``\\u202e``."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


class _OneLine(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                arg if isinstance(arg, (int, float)) else plain(str(arg)) for arg in record.args
            )
        return True


LOGGER: Final = logging.getLogger("tensorwire")
LOGGER.addFilter(_OneLine())
