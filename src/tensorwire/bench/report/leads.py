# SPDX-License-Identifier: Apache-2.0
"""Where others are ahead of us, and by how much."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensorwire.bench.report.runs import Measured
from tensorwire.bench.report.speed import Ratio, ratio, times


@dataclass(frozen=True)
class Lead:
    """other: who is ahead; ours: what it is compared with; ratio: how many times faster it is."""

    other: Measured
    ours: Measured
    ratio: Ratio


@dataclass(frozen=True)
class Leads:
    """peers, limits: the leads of other libraries and of limits, the largest first. compared: how
    many rows of other libraries have one of ours beside."""

    peers: list[Lead]
    limits: list[Lead]
    compared: int


def leads(measured: Sequence[Measured]) -> Leads:
    """In one run."""
    found, compared = [], 0
    for other in measured:
        if other.role == "own" or other.announced:
            continue
        ours = counterpart(other, measured)
        if ours is None or (by := ratio(other, ours, paired=True)) is None:
            continue
        compared += other.role == "peer"
        if by.value > 1:
            found.append(Lead(other, ours, by))
    found.sort(key=lambda lead: -lead.ratio.value)
    peers = [lead for lead in found if lead.other.role == "peer"]
    return Leads(peers, [lead for lead in found if lead.other.role == "limit"], compared)


def counterpart(other: Measured, measured: Iterable[Measured]) -> Measured | None:
    """What of ours does the same work: over the same transport where that was measured, and then
    from ordinary memory, since others have no arena; of several the fastest."""
    same = [
        each
        for each in measured
        if each.role == "own"
        and not each.announced
        and each.work.comparable == other.work.comparable
        and times(each, other) is not None
    ]
    same = [each for each in same if each.row.transport == other.row.transport] or same
    same = [each for each in same if each.row.origin == other.row.origin] or same
    return max(same, key=lambda each: times(each, other) or 0, default=None)
