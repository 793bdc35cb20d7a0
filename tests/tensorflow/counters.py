# SPDX-License-Identifier: Apache-2.0
"""What ``tensorwire run --stats`` calls the plugin's counters, as the plugin declares them."""

from __future__ import annotations

import re

from tensorwire import transports
from tensorwire.tensorflow.build import SOURCES

_DECLARED = (SOURCES / "statistics.h").read_text()
LABELS = {
    **dict(re.findall(r"(?:COUNT|SIZED)\((\w+), \"(.+)\"\)", _DECLARED)),
    **{f"received_{name}": f"received: over {name}, copied" for name in transports.names()},
}
