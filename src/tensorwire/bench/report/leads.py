# SPDX-License-Identifier: Apache-2.0
"""Where others are ahead of us, and by how much."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
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
    many pairs of a row of another library and one of ours there are."""

    peers: list[Lead]
    limits: list[Lead]
    compared: int


def leads(measured: Sequence[Measured]) -> Leads:
    """In one run."""
    found, compared = [], 0
    own: dict[Hashable, list[Measured]] = {}
    for each in measured:
        if each.role == "own" and not each.announced:
            own.setdefault(each.comparable, []).append(each)
    for other in measured:
        if other.role == "own" or other.announced:
            continue
        for ours in _counterparts(other, own.get(other.comparable, [])):
            by = ratio(other, ours, paired=True)
            assert by is not None
            compared += other.role == "peer"
            if by.value > 1:
                found.append(Lead(other, ours, by))
    found.sort(key=lambda lead: -lead.ratio.value)
    peers = [lead for lead in found if lead.other.role == "peer"]
    return Leads(peers, [lead for lead in found if lead.other.role == "limit"], compared)


def _counterparts(other: Measured, own: Iterable[Measured]) -> list[Measured]:
    """With which of ours one is compared, of those that do the same work: over the same transport
    where that was measured, else over each of ours (of a limit, over the fastest); from the same
    kind of memory where that was measured, since others have no arena; of several the fastest. One
    of ours that counts all that others count goes before one that begins later, but with limits."""
    same = [each for each in own if times(other, each) is not None]
    same = [each for each in same if each.row.transport == other.row.transport] or same
    same = [each for each in same if each.row.origin == other.row.origin] or same
    if other.role == "limit":
        same = [each for each in same if not each.as_others]
    else:
        same = [each for each in same if each.as_others] or same
    same.sort(key=lambda each: times(other, each) or 0)
    if other.role == "limit":
        return same[:1]
    fastest: dict[str, Measured] = {}
    for each in same:
        fastest.setdefault(each.row.transport, each)
    return list(fastest.values())
