# SPDX-License-Identifier: Apache-2.0
"""What Tensorwire can do without, one idea at a time, and on which transports that is another
thing than all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from tensorwire import environment
from tensorwire.bench.harness.work import format_size, parse_size
from tensorwire.bench.suites.links.curves import Fixed
from tensorwire.bench.suites.links.tuning import NAMES, cuts, default_of, default_path, rules_of

LINK_TUNING: Final = "TENSORWIRE_LINK_TUNING"
SPIN: Final = "TENSORWIRE_SPIN_US"
COALESCE: Final = "TENSORWIRE_COALESCE_BYTES"
EAGER: Final = "TENSORWIRE_EAGER_BYTES"
CHUNK: Final = "TENSORWIRE_CHUNK_BYTES"
_VARIABLES: Final[Mapping[str, Sequence[str]]] = {
    "coalesce": (COALESCE, "TF_RDMA_ACC_SIZE"),
    "eager": (EAGER,),
    "chunk": (CHUNK, "TF_RDMA_CHUNK_SIZE"),
}
"""Of each threshold, of which the first one that is set counts."""
TUNING: Final = "tuning"
PIPELINING: Final = "pipelining"
"""The idea that no setting takes away: without it a caller has one call under way."""
IDEAS: Final[Mapping[str, Mapping[str, str]]] = {
    "coalescing": {COALESCE: "0"},
    "eager": {EAGER: "0"},
    "rendezvous": {EAGER: "1M"},
    "chunking": {CHUNK: "64M"},
    "adaptive": {EAGER: "0", COALESCE: "0", LINK_TUNING: "off"},
    "spinning": {SPIN: "0"},
    TUNING: {LINK_TUNING: "off"},
    PIPELINING: {},
}
"""What a variant does without, and the settings by which it does."""


def why_same(idea: str, transport: str) -> str | None:
    """Why links by a transport do the same without the idea, by the settings of this process; None
    where they do not."""
    if idea == PIPELINING:
        return None
    if idea == "spinning":
        return _why_no_spinning()
    without = {**os.environ, **IDEAS[idea]}
    if _does(transport, os.environ) != _does(transport, without):
        return None
    if idea == TUNING:
        return f"no table changes links by {transport}: tensorwire tune links makes one"
    if idea == "chunking" and not cuts(transport):
        return f"{transport} hands large buffers over whole, and cuts nothing"
    settings = ", ".join(f"{name}={value}" for name, value in IDEAS[idea].items())
    usual = thresholds(transport, os.environ)
    if idea == "eager" and usual.eager <= usual.coalesce:
        limit = format_size(usual.coalesce)
        return (
            f"over {transport} buffers up to {limit} are copied along as what coalesces, with "
            f"{settings} too: adaptive is without both"
        )
    return f"links by {transport} have {settings} already, or what comes to the same"


def _why_no_spinning() -> str | None:
    if len(os.sched_getaffinity(0)) == 1:
        return "with one processor nobody spins"
    return f"{SPIN} is 0 already" if environment.read(SPIN) == "0" else None


def _does(transport: str, settings: Mapping[str, str]) -> tuple[int, int, int]:
    """What of its thresholds makes a difference to some message: what shares a send, what is copied
    along, and how large a chunk is."""
    found = thresholds(transport, settings)
    chunk = found.chunk if cuts(transport) else 0
    return found.coalesce, max(found.eager, found.coalesce), chunk


def thresholds(transport: str, settings: Mapping[str, str]) -> Fixed:
    """Of links by a transport, in processes with these variables in their environment: what they
    say, else what this user's table says of any peer, else the defaults."""
    found = default_of(transport)
    named = settings.get(LINK_TUNING) or "auto"
    if named != "off":
        path = default_path() if named == "auto" else Path(named)
        found = replace(found, **_of_table(path, transport))
    for field, names in _VARIABLES.items():
        given = next(filter(None, map(settings.get, names)), None)
        with suppress(ValueError):  # the core says so to whoever makes a link
            if given:
                found = replace(found, **{field: parse_size(given, 1)})
    return found


def _of_table(path: Path, transport: str) -> dict[str, int]:
    fields = dict(zip(NAMES, _VARIABLES, strict=True))
    return {
        fields[name]: nbytes
        for of, _, name, nbytes in rules_of(path)
        if of == transport and name in fields
    }
