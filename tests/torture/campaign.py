# SPDX-License-Identifier: Apache-2.0
"""The parts of the campaign, in order, and how long each takes on an idle machine of two cores."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.torture import (
    crowds,
    exits,
    groups,
    hostile,
    hosts,
    kills,
    regions,
    shortage,
    soak,
    weights,
)
from tests.torture.figures import Part, Row, Say


class Named(NamedTuple):
    run: Part
    minutes: float
    """Estimate, at scale 1."""


def _hostile(case: tuple[str, str]) -> Part:
    def run(scale: float, seed: int, say: Say) -> list[Row]:
        return [hostile.one(case, scale, seed, say)]

    return run


PARTS: Final[dict[str, Named]] = {
    **{
        f"hostile {kind} {listener}": Named(_hostile((kind, listener)), 0.3)
        for kind, listener in hostile.CASES
    },
    "killed": Named(kills.killed, 4.0),
    "interrupted": Named(kills.interrupted, 2.0),
    "stopped": Named(kills.stopped, 3.0),
    "ranks die": Named(groups.killed, 3.0),
    "ranks stall": Named(groups.stopped, 10.0),
    "ranks disagree": Named(groups.disagreeing, 1.0),
    "ranks leave": Named(groups.leaving, 1.0),
    "ranks fork": Named(groups.forking, 1.0),
    "groups crossed": Named(groups.crossing, 4.0),
    "hosts cut off": Named(hosts.cut_off, 3.0),
    "without descriptors": Named(shortage.without_descriptors, 1.0),
    "without address space": Named(shortage.without_address_space, 3.0),
    "full arenas": Named(shortage.full_arenas, 0.5),
    "weights copied": Named(weights.copied, 1.0),
    "weights written": Named(weights.written, 1.0),
    "signals": Named(regions.signals, 2.0),
    "reconnects": Named(regions.reconnects, 0.5),
    "signals verbs": Named(regions.signals_by_device, 2.0),
    "reconnects verbs": Named(regions.reconnects_by_device, 2.0),
    "forks": Named(crowds.forks, 1.5),
    "channels": Named(crowds.channels, 0.3),
    "soak": Named(soak.run, 10.2),
    "exits": Named(exits.run, 10.0),
}
