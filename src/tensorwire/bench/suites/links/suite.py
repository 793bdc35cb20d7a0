# SPDX-License-Identifier: Apache-2.0
"""A whole run for one transport: measured, chosen, and checked."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwire.bench.harness.schedule import Progress
from tensorwire.bench.suites.links.checking import Checked, checks, compare
from tensorwire.bench.suites.links.curves import Curves, measure
from tensorwire.bench.suites.links.service import Server
from tensorwire.bench.suites.links.tuning import Choice, choices, cuts, default_of, plan, tuned


@dataclass(frozen=True)
class Tuned:
    """Of one transport: what was measured, and what was chosen of it."""

    transport: str
    curves: Curves
    choices: list[Choice]
    checked: list[Checked]

    @property
    def passed(self) -> bool:
        return all(each.passed for each in self.checked)


def tune(
    server: Server, transport: str, rounds: int, seconds: float, check: bool, progress: Progress
) -> Tuned:
    """AgentError."""
    curves = measure(server, transport, plan(transport), rounds, seconds, progress)
    chosen = choices(curves, transport)
    checked = []
    if check:
        after = measure(
            server, transport, checks(transport, tuned(chosen)), rounds, seconds, progress
        )
        checked = compare(
            after.visits, default_of(transport), tuned(chosen), in_chunks=cuts(transport)
        )
    return Tuned(transport, curves, chosen, checked)
