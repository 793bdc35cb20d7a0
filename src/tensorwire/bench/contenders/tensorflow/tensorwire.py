# SPDX-License-Identifier: Apache-2.0
"""Tensorwire's protocol, also with planned transfers. Which way tensors went is known from what
both processes counted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from tensorwire import _core
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.ways import WAYS
from tensorwire.bench.suites.tensorflow.cases import MANY, MIRRORED, largest, moved
from tensorwire.bench.suites.tensorflow.contender import Contender, Counts, PathError, Taken
from tensorwire.transports import names, why_not

IN_PLACE_FROM: Final = 1 << 20
"""Larger tensors must be read in place over shared memory; small ones are cheaper to copy."""
COALESCED_TO: Final = 64 << 10
"""Up to so many bytes each, variables that are read are coalesced by plans."""
LINK_BYTES: Final = ("in_place", "shm", "verbs", "tcp")
MEMORY, MESSAGES = GROUP_BYTES = ("group_memory_bytes", "group_message_bytes")
"""What groups of ranks have moved over memory that all of them read, and by links."""


class Tensorwire(Contender):
    role = "own"
    transports = names()

    def __init__(self, plan: str = "off") -> None:
        self._plan = plan

    def variants(self) -> Mapping[str, Tensorwire]:
        return {"tensorwire-planned": Tensorwire("on")}

    def viable(self, transport: str) -> str | None:
        return why_not(transport)

    def protocol(self, transport: str) -> str:
        from tensorwire import tensorflow as plugin

        os.environ["TENSORWIRE_TRANSPORT"] = transport
        os.environ["TENSORWIRE_TF_PLAN"] = self._plan
        return plugin.enable().protocol

    def counts(self) -> Counts:
        from tensorwire import tensorflow as plugin

        counts = {**plugin.stats(), **dict.fromkeys(GROUP_BYTES, 0)}
        for _, way, _, nbytes in _core.group_statistics():
            counts[MEMORY if way in WAYS["memory"] else MESSAGES] += nbytes
        return counts

    def taken(self, work: Work, transport: str, steps: int, counts: Counts) -> Taken:
        if not counts:
            raise PathError("took stock gRPC: the plugin is not loaded")
        stock = max(counts["received_grpc"], counts["served_grpc"]) + counts["collective_grpc"]
        if stock:
            raise PathError(f"{stock} tensors took stock gRPC")
        if work.case == MIRRORED:
            # Nothing else tells the transport of links: they have no other than was asked for.
            grouped = counts[MEMORY if transport == "shm" else MESSAGES]
            _enough(grouped + counts["collective_received_bytes"], moved(work) * steps)
            return Taken(transport)
        found = {way for way in LINK_BYTES if counts[f"received_{way}"]}
        transports = {"shm" if way == "in_place" else way for way in found}
        if transports != {transport}:
            raise PathError(f"took {' and '.join(sorted(transports)) or 'no link'} instead")
        needed = moved(work) * steps
        if work.case == "allreduce":
            _enough(
                counts["collective_received_bytes"] + counts["collective_grouped_bytes"], needed
            )
            return Taken(transport)
        received = sum(counts[f"received_{way}_bytes"] for way in LINK_BYTES)
        _enough(received, needed)
        in_place = counts["received_in_place_bytes"]
        # Variables that are not coalesced are planned, after first steps that are learnt from.
        if self._plan == "on" and work.case == "many":
            tensors, most = sum(counts[f"received_{way}"] for way in LINK_BYTES), MANY * steps // 2
            if largest(work) > COALESCED_TO:
                tensors -= counts["received_planned"]
            if tensors > most:
                raise PathError(f"{tensors} tensors came by themselves, not {most} at most")
        if transport == "shm" and largest(work) >= IN_PLACE_FROM:
            _enough(in_place, needed, " in place")
        return Taken(transport, in_place / received)


def _enough(bytes_: int, needed: int, how: str = "") -> None:
    if bytes_ < needed:
        raise PathError(f"only {bytes_} of {needed} bytes were received{how}")
