# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of all links and channels of this process, and of its memory.

``register()`` is all that a program has to call; values are read when Prometheus asks for them.
"""

from __future__ import annotations

from tensorwire.observe.metrics import LinkCollector, register

__all__ = ["LinkCollector", "register"]
