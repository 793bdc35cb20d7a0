# SPDX-License-Identifier: Apache-2.0
"""What links do, step by step: which protocol each message took, and when.

``keep(10_000)`` (or ``TENSORWIRE_TRACE=10000`` in the environment) has every link of this process
note its last steps; ``Channel.trace()`` and ``Server.traces()`` give them. ``tensorwire trace``
does it for a whole program. ``read`` and ``read_groups`` read what processes have left in a folder.
"""

from __future__ import annotations

from tensorwire.observe.trace import (
    PAYLOAD,
    STEPS,
    Direction,
    Event,
    GroupTrace,
    LinkTrace,
    Step,
    keep,
    read,
    read_groups,
)

__all__ = [
    "PAYLOAD",
    "STEPS",
    "Direction",
    "Event",
    "GroupTrace",
    "LinkTrace",
    "Step",
    "keep",
    "read",
    "read_groups",
]
