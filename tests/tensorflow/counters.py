# SPDX-License-Identifier: Apache-2.0
"""The plugin's counters, and what ``tensorwire run --stats`` calls them, as the plugin declares
them."""

from __future__ import annotations

import re

from tensorwire import transports
from tensorwire.tensorflow.build import SOURCES

_DECLARED = (SOURCES / "statistics.h").read_text()
LABELS = {
    **dict(re.findall(r"(?:COUNT|SIZED)\((\w+), \"(.+)\"\)", _DECLARED)),
    **{f"received_{name}": f"received: over {name}, copied" for name in transports.names()},
}
NAMES = {
    *LABELS,
    *(f"{name}_bytes" for name in re.findall(r"SIZED\((\w+), \"", _DECLARED)),
    *(f"received_{name}_bytes" for name in transports.names()),
}
