# SPDX-License-Identifier: Apache-2.0
"""Which way the tensors of a visit went, from what both processes counted before and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorwire.bench.tensorflow.cases import Work

Counts = Mapping[str, int]

IN_PLACE_FROM = 1 << 20
"""Larger tensors must be read in place over shared memory; small ones are cheaper to copy."""
STOCK = "grpc"
LINK_BYTES = ("in_place", "shm", "verbs", "tcp")


class PathError(Exception):
    """The tensors did not go the way that the figures would be about."""


@dataclass(frozen=True)
class Taken:
    """transport: ``grpc``, ``shm``, ``verbs`` or ``tcp``. in_place: the share of the bytes that
    were read in the sender's memory; None for collectives, which do not count it, and for gRPC."""

    transport: str
    in_place: float | None


def grown(before: Sequence[Counts], after: Sequence[Counts]) -> dict[str, int]:
    """How much each counter of all processes together has grown."""
    total: dict[str, int] = {}
    for old, new in zip(before, after, strict=True):
        for name, value in new.items():
            if isinstance(value, int):
                total[name] = total.get(name, 0) + value - old.get(name, 0)
    return total


def taken(work: Work, wanted: str, steps: int, counts: Counts) -> Taken:
    """The way of at least ``steps`` steps of ``work``.

    counts: ``grown`` during them; empty for stock TensorFlow, which counts nothing.
    Raises PathError when it was not ``wanted``, or not for all of the bytes.
    """
    if not counts:
        if wanted != STOCK:
            raise PathError("took stock gRPC: the plugin is not loaded")
        return Taken(STOCK, None)
    stock = max(counts["received_grpc"], counts["served_grpc"]) + counts["collective_grpc"]
    if stock:
        raise PathError(f"{stock} tensors took stock gRPC")
    found = {way for way in LINK_BYTES if counts[f"received_{way}"]}
    transports = {"shm" if way == "in_place" else way for way in found}
    if transports != {wanted}:
        raise PathError(f"took {' and '.join(sorted(transports)) or 'no link'} instead")
    needed = work.moved * steps
    if work.case == "allreduce":
        _enough(counts["collective_received_bytes"], needed)
        return Taken(wanted, None)
    moved = sum(counts[f"received_{way}_bytes"] for way in LINK_BYTES)
    _enough(moved, needed)
    in_place = counts["received_in_place_bytes"] / moved
    if wanted == "shm" and work.size >= IN_PLACE_FROM:
        _enough(counts["received_in_place_bytes"], needed, " in place")
    return Taken(wanted, in_place)


def _enough(bytes_: int, needed: int, how: str = "") -> None:
    if bytes_ < needed:
        raise PathError(f"only {bytes_} of {needed} bytes were received{how}")
