# SPDX-License-Identifier: Apache-2.0
"""Exponential back-off."""

from __future__ import annotations

import random


def pause(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after so many failures in a row, at least one, with a jitter of 20 %."""
    return min(longest, first * 2.0 ** min(failures - 1, 10)) * random.uniform(0.8, 1.2)
