# SPDX-License-Identifier: Apache-2.0
"""What a metric is, for whoever declares one beside the statistics that it is read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Measure:
    """A metric and the statistics that it is read from.

    name: after ``tensorwire_`` and, for counters, before ``_total``; ends with its unit, if any.
    facts: names in the statistics, each with its values of ``labels``.
    by_size: they stand in each entry of ``classes``, whose name is the value of the last label.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    facts: Mapping[str, Labels]
    labels: Labels = ()
    by_size: bool = False
